"""A reference server for notebooks and tests, as a child process."""
from __future__ import annotations

import atexit
import json
import os
import pathlib
import shutil
import select
import subprocess
import tempfile
import time
from typing import Any, Optional

_BEGIN_SECONDS = 30
_STOP_SECONDS = 10
_MAX_ANNOUNCEMENT_BYTES = 65536


def program(name: str) -> str:
    """The path of one of TensorHub's programs: beside this package, in the folder TENSORHUB_BIN, or on the PATH."""
    named = os.environ.get("TENSORHUB_BIN")
    places = ([pathlib.Path(named)] if named else []) + [pathlib.Path(__file__).resolve().parent / "bin"]
    for place in places:
        if os.access(place / name, os.X_OK):
            return str(place / name)
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError("tensorhub: there is no program %s in %s, nor on the PATH; it is a part of the wheel, and "
                                "TENSORHUB_BIN names the folder of another one" % (name, ", ".join(map(str, places))))
    return found


class Server:
    """A server that ends with this object, and with this process. A context manager; `address` is "host:port"."""

    def __init__(self, listen: str = "127.0.0.1:0", state_dir: Optional[str] = None, quiet: bool = False):
        self._temporary = None
        if state_dir is None:
            # No TemporaryDirectory: that of a forked child would be removed with the child.
            state_dir = self._temporary = tempfile.mkdtemp(prefix="tensorhub-")
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [program("tensorhub_server"), "--listen=" + listen, "--state-dir=" + state_dir, "--json",
             "--end-with-parent=%d" % self._owner, "--log-level=" + ("warning" if quiet else "info")],
            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
            start_new_session=True)  # a Ctrl-C in the terminal, or a notebook's interrupt, is for this process alone
        atexit.register(self.stop)
        try:
            self.address: str = json.loads(_first_line(self._process.stdout.fileno()))["address"]
        except BaseException as error:
            self.stop()
            if not isinstance(error, (ValueError, KeyError, TimeoutError)):
                raise
            raise RuntimeError("tensorhub_server did not begin (exit status %s; %s); its log on stderr says why"
                               % (self._process.returncode, error if isinstance(error, TimeoutError) else "it did not say where "
                                  "it listens")) from None

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the server; workers are told to come back later. Idempotent."""
        atexit.unregister(self.stop)
        if os.getpid() != self._owner:
            return  # a forked child: the server is its parent's
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process.stdout.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


def _first_line(fd: int) -> bytes:
    """The first line that comes, or what there is of it at the end. TimeoutError."""
    end = time.monotonic() + _BEGIN_SECONDS
    line = b""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while b"\n" not in line and len(line) < _MAX_ANNOUNCEMENT_BYTES:
        if not poll.poll(max(0, end - time.monotonic()) * 1000):
            raise TimeoutError("it has not said where it listens for %d s" % _BEGIN_SECONDS)
        more = os.read(fd, 4096)
        if not more:
            break
        line += more
    return line.split(b"\n", 1)[0]


def serve(listen: str = "127.0.0.1:0", state_dir: Optional[str] = None, quiet: bool = False) -> Server:
    """Starts a reference server as a child of this process; without `state_dir` it forgets all at its end.

    Others reach it at `address`, by default on this host alone. Its log goes to stderr; of one that is `quiet` only warnings and
    errors. RuntimeError: it has not begun.

        with tensorhub.serve() as server, tensorhub.join(server.address, run="r", model="m", group="trainer") as hub: ...
    """
    return Server(listen, state_dir, quiet)
