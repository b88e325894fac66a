"""Handles of the library: no call uses one that has been freed, and none is freed while a call uses it."""
from __future__ import annotations

import ctypes
import weakref
from typing import Any, Callable, Optional

from . import _library
from ._errors import FailedPrecondition, check
from ._library import byref


class Lease:
    """A reference to a handle of the library, which is freed with the last reference, or before the process ends.

    What the library refers to for as long is in `keep`.
    """

    def __init__(self, value: int, free: Callable[[ctypes.c_void_p], None]):
        self.value = ctypes.c_void_p(value)
        self.keep: list = []
        weakref.finalize(self, _free, free, self.value, self.keep)


def _free(free: Callable[[ctypes.c_void_p], None], value: ctypes.c_void_p, keep: list) -> None:
    """At the end of the process others may still refer to the lease, on threads or in what atexit calls: they find no value."""
    handle = ctypes.c_void_p(value.value)
    value.value = None
    free(handle)
    keep.clear()


class Handle:
    """An owner's handle, until it is closed. Thread-safe: one thread may close what another one uses.

    Closing cancels the operations that were begun on it. A call of the library's that is just running on another thread
    ends first; `over` is what calls raise afterwards.
    """

    def __init__(self, lease: Lease, over: str):
        self._lease: Optional[Lease] = lease
        self._over = over

    @property
    def is_open(self) -> bool:
        lease = self._lease
        return lease is not None and bool(lease.value)

    def lease(self) -> Lease:
        """FailedPrecondition once it is closed."""
        lease = self._lease
        if lease is None:
            raise FailedPrecondition(self._over)
        if not lease.value:
            raise FailedPrecondition("the process ends, and what was joined and registered has ended before it")
        return lease

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """function(handle, *arguments), for functions that do not wait."""
        lease = self.lease()
        try:
            return function(lease.value, *arguments)
        finally:
            del lease  # a traceback may keep this frame

    def close(self) -> None:
        self._lease = None


def answer_of(handle: Handle, function: Callable[..., int], *arguments: Any) -> Any:
    """What a function tells that waits for nobody, and gives JSON through its last parameter."""
    text = ctypes.c_char_p()
    check(handle.call(function, *arguments, byref(text)))
    return _library.take_json(text)
