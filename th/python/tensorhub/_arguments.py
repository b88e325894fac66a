"""Arguments as callers write them, and as the library takes them."""
from __future__ import annotations

import ctypes
import fractions
import math
import numbers
import operator
import os
import re
import time
from typing import Any, Optional, Union

Version = Union[int, str]
Bytes = Union[int, str]
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def encoded(text: str | None, what: str) -> bytes | None:
    """A text as the library takes it. TypeError and ValueError naming `what` where it cannot be one."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError("%s is a text, not %s %r" % (what, type(text).__name__, text))
    if "\0" in text:
        raise ValueError("%s is %r, which has a zero byte" % (what, text))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError("%s is %r, which is no valid Unicode" % (what, text)) from None


def seconds(value: float, what: str = "timeout") -> ctypes.c_double:
    """A time as the library takes it. TypeError and ValueError naming `what` where it cannot be one."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError("%s is a number of seconds, not %s %r" % (what, type(value).__name__, value))
    try:
        given = float(value)
    except OverflowError:
        given = math.inf
    if math.isnan(given):
        raise ValueError("%s is %r: a number of seconds is expected" % (what, value))
    return ctypes.c_double(given)


def nonzero_seconds(value: float, what: str = "timeout") -> ctypes.c_double:
    """As seconds, where the library takes zero as its default: a zero that a caller gives is the shortest time."""
    return ctypes.c_double(seconds(value, what).value or 1e-9)


def seconds_left(end: float) -> float:
    """The seconds until `end` by time.monotonic, none once it is over."""
    return max(0, end - time.monotonic())


def integer(value: int, what: str, kind: type = ctypes.c_uint32) -> Any:
    """An integer as the library takes it, of ctypes' `kind`. TypeError and ValueError naming `what` where it cannot be one.

    >>> integer(-1, "rank")
    Traceback (most recent call last):
    ValueError: rank is -1: an integer from 0 to 4294967295 is expected
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError("%s is an integer, not %s %r" % (what, type(value).__name__, value))
    given = operator.index(value)
    bits = 8 * ctypes.sizeof(kind)
    least = 0 if kind(-1).value > 0 else -(1 << (bits - 1))
    most = least + (1 << bits) - 1
    if not least <= given <= most:
        raise ValueError("%s is %d: an integer from %d to %d is expected" % (what, given, least, most))
    return kind(given)


def label_of(version: Version) -> bytes:
    """The text by which the library knows a version: a step, a label, "latest", or "#epoch.number"."""
    if isinstance(version, bool) or not isinstance(version, (numbers.Integral, str)):
        raise TypeError("a version is a step or a label, not %s %r" % (type(version).__name__, version))
    if not isinstance(version, str) and version < 0:
        raise ValueError("a step is not negative: %d" % version)
    return encoded(str(version), "version")


def given_or_environment(name: str, value: Optional[str]) -> Optional[str]:
    """`value`, or what TH_NAME of the environment says where it is not given."""
    return value if value is not None else os.environ.get("TH_" + name.upper())


def parse_bytes(value: int | str, what: str) -> int:
    """A number of bytes, or a text with its unit: "1GiB", "250MB". ValueError naming `what`.

    >>> parse_bytes("1.5GiB", "limit")
    1610612736
    """
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        if value < 0:
            raise ValueError("%s is %d: a size is not negative" % (what, value))
        return int(value)
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]i?B|B)", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("%s is %r: a number of bytes, or a text with its unit as \"64MiB\" (%s)"
                         % (what, value, ", ".join(_UNITS)))
    return int(fractions.Fraction(match.group(1)) * _UNITS[match.group(2)])
