"""The commands th, tensorhub_server and tensorhub_worker of an installed wheel: each becomes the program."""
from __future__ import annotations

import os
import sys

from ._server import program


def _become(name: str) -> None:
    os.execv(program(name), [name] + sys.argv[1:])


def th() -> None:
    _become("th")


def tensorhub_server() -> None:
    _become("tensorhub_server")


def tensorhub_worker() -> None:
    _become("tensorhub_worker")
