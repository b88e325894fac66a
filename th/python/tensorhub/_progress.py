"""How far a call is, as a line on a terminal."""
from __future__ import annotations

import contextlib
import sys
import time
from typing import Callable, Iterator, Optional, TextIO

OnProgress = Callable[[int, int], None]
_UNITS = ("B", "KB", "MB", "GB", "TB")
_BAR_COLUMNS = 30


def size_of(count: float) -> str:
    """A number of bytes with three digits.

    >>> size_of(0), size_of(999), size_of(1234567), size_of(45.6e9)
    ('0 B', '999 B', '1.23 MB', '45.6 GB')
    """
    unit = 0
    while count >= 999.5 and unit + 1 < len(_UNITS):
        count /= 1000
        unit += 1
    return "%.3g %s" % (count, _UNITS[unit])


class _Line:
    """One line of a terminal, drawn over and over."""

    def __init__(self, file: TextIO, what: str):
        self._file, self._what, self._begin = file, what, time.monotonic()
        self._drawn = False

    def draw(self, received: int, total: int) -> None:
        if total == 0:
            return
        seconds = max(time.monotonic() - self._begin, 1e-3)
        full = _BAR_COLUMNS * received // total
        self._file.write("\r%s |%s%s| %d %% of %s, %s/s \x1b[K" % (
            self._what, "#" * full, " " * (_BAR_COLUMNS - full), 100 * received // total, size_of(total),
            size_of(received / seconds)))
        self._file.flush()
        self._drawn = True

    def end(self) -> None:
        if self._drawn:
            self._file.write("\n")
            self._file.flush()


@contextlib.contextmanager
def shown(progress: bool, on_progress: Optional[OnProgress], what: str) -> Iterator[Optional[OnProgress]]:
    """What a call is to tell its progress to: `on_progress`, and with `progress` a line on stderr where that is a terminal."""
    if not progress or not sys.stderr.isatty():
        yield on_progress
        return
    line = _Line(sys.stderr, what)

    def both(received: int, total: int) -> None:
        line.draw(received, total)
        if on_progress is not None:
            on_progress(received, total)

    try:
        yield both
    finally:
        line.end()
