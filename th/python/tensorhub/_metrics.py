"""Metrics of this process."""
from __future__ import annotations

import ctypes
from ctypes import byref

from . import _library
from ._errors import check


def metrics() -> str:
    """What this process's hubs have done and do now, as text for Prometheus (format 0.0.4).

    Calls by outcome, stalls by phase, bytes by transport, readers; docs/operations.md has the metrics. Serve it beside your own,
    on any thread:

        >>> import tensorhub
        >>> "process_resident_memory_bytes" in tensorhub.metrics()
        True
    """
    text = ctypes.c_char_p()
    check(_library.lib.th_metrics(byref(text)))
    return _library.take_text(text)
