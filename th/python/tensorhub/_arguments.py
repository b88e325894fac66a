"""Arguments as callers write them, and as the library takes them."""
from __future__ import annotations

import os
import re
from typing import Optional, Union

Version = Union[int, str]
Bytes = Union[int, str]
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def encoded(text: str | None) -> bytes | None:
    """A parameter of the library. ValueError where it cannot be one."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError("a text is expected, not %s %r" % (type(text).__name__, text))
    if "\0" in text:
        raise ValueError("%r has a zero byte" % text)
    return text.encode()


def label_of(version: Version) -> bytes:
    """The text by which the library knows a version: a step, a label, "latest", or "#epoch.number"."""
    if isinstance(version, bool) or not isinstance(version, (int, str)):
        raise TypeError("a version is a step or a label, not %s %r" % (type(version).__name__, version))
    if isinstance(version, int) and version < 0:
        raise ValueError("a step is not negative: %d" % version)
    return encoded(str(version))


def given_or_environment(name: str, value: Optional[str]) -> Optional[str]:
    """`value`, or what TH_NAME of the environment says where it is not given."""
    return value if value is not None else os.environ.get("TH_" + name.upper())


def parse_bytes(value: int | str, what: str) -> int:
    """A number of bytes, or a text with its unit: "1GiB", "250MB". ValueError naming `what`.

    >>> parse_bytes("1.5GiB", "limit")
    1610612736
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError("%s is %d: a size is not negative" % (what, value))
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]i?B|B)", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("%s is %r: a number of bytes, or a text with its unit as \"64MiB\" (%s)"
                         % (what, value, ", ".join(_UNITS)))
    return int(float(match.group(1)) * _UNITS[match.group(2)])
