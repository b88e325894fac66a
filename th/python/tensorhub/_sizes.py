"""Sizes as callers write them."""
from __future__ import annotations

import re

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


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
