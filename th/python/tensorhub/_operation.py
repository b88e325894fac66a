"""Calls that wait: begun by the library on a thread of its own, waited for here, so that Ctrl-C is answered at once.

A call that is interrupted, by Ctrl-C or the cancellation of its task, is cancelled. It mostly ends within milliseconds; one
that must end by itself, as the memory is its own until then (an unpublish), is left to a thread that waits for it.
"""
from __future__ import annotations

import asyncio
import ctypes
import os
import queue
import select
import threading
import weakref
from typing import Any, Callable, Optional

from . import _library
from ._errors import check, error_of
from ._handle import Handle, Lease
from ._library import byref, lib

# What an interrupted caller waits for its call to end, before the reaper does.
_END_SECONDS = 0.15

_FREES = {"client": lib.th_client_free, "buffer": lib.th_buffer_free, "controller": lib.th_controller_free}


class _Call:
    """A call of the library's, and what it refers to: both live until it has ended."""
    __slots__ = ("handle", "keep")

    def __init__(self, keep: Any):
        self.handle = ctypes.c_void_p()
        self.keep = keep

    def free(self) -> None:
        """Cancels it if it is under way, and waits for its end."""
        lib.th_operation_free(self.handle)
        self.keep = None
        _calls.discard(self)


class _Reaper:
    """A thread that frees the calls that nobody waits for any more. It is made with the first call of a process."""

    def __init__(self) -> None:
        self._left: "queue.SimpleQueue[_Call]" = queue.SimpleQueue()
        threading.Thread(target=self._reap, name="tensorhub-reaper", daemon=True).start()

    def take(self, call: _Call) -> None:
        """May be called by a finalizer, at any point of any thread."""
        self._left.put(call)

    def _reap(self) -> None:
        while True:
            self._left.get().free()


# All calls that are not freed: whatever interrupts their callers, what they refer to stays.
_calls: set = set()
_reaper: Optional[_Reaper] = None
_reaper_lock = threading.Lock()


def _the_reaper() -> _Reaper:
    global _reaper
    with _reaper_lock:
        if _reaper is None:
            _reaper = _Reaper()
        return _reaper


def _forget_after_fork() -> None:
    """The child has none of its parent's threads."""
    global _reaper, _reaper_lock
    _reaper, _reaper_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)


class Operation:
    """One call under way. `on` is the handle that it is begun on; `keep` lives until it has ended, with its arguments.

    `makes` names the kind of handle that comes of it. Not thread-safe; each call makes one, and ends it. One that is
    dropped is cancelled.
    """

    def __init__(self, start: Callable[..., int], *arguments: Any, on: Optional[Handle] = None, keep: Any = None,
                 makes: Optional[str] = None):
        self._makes = makes
        self._call = _Call((keep, arguments))
        self._abandon = weakref.finalize(self, _the_reaper().take, self._call)
        self._abandon.atexit = False  # a thread may be waiting for it then; it ends with the client
        _calls.add(self._call)
        try:
            out = byref(self._call.handle)
            check(start(*arguments, out) if on is None else on.call(start, *arguments, out))
        except BaseException:
            self._interrupt()
            raise

    def fileno(self) -> int:
        return lib.th_operation_fd(self._call.handle)

    def close(self) -> None:
        """Cancels it if it is under way, and waits for its end."""
        if self._abandon.detach() is not None:
            self._call.free()

    def progress(self) -> tuple[int, int]:
        """Bytes received, and all there are; zeros before any has come."""
        progress = _library.Progress()
        check(lib.th_operation_progress(self._call.handle, byref(progress)))
        return progress.bytes_received, progress.bytes_total

    # ---- waiting

    def run(self, on_progress: Callable[[int, int], None] | None = None) -> "Result":
        """Waits for the end, and returns what it came to or raises its error."""
        try:
            poll = select.poll()
            poll.register(self.fileno(), select.POLLIN)
            if on_progress is None:
                poll.poll()
            else:
                while not poll.poll(50):
                    on_progress(*self.progress())
        except BaseException:
            self._interrupt()
            raise
        return self._result()

    async def run_async(self) -> "Result":
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        fd = self.fileno()

        def on_readable() -> None:
            loop.remove_reader(fd)
            if not ended.done():
                ended.set_result(None)

        loop.add_reader(fd, on_readable)
        try:
            await ended
        except BaseException:
            loop.remove_reader(fd)
            self._interrupt()
            raise
        return self._result()

    def _interrupt(self) -> None:
        """Cancels it; what does not end at once is left to the reaper."""
        if not self._call.handle:  # it has not begun
            self.close()
            return
        lib.th_operation_cancel(self._call.handle)
        if lib.th_operation_wait(self._call.handle, ctypes.c_double(_END_SECONDS)) == _library.OK:
            self.close()
        else:
            self._abandon()

    def _result(self) -> "Result":
        handle = self._call.handle
        try:
            outcome, text = ctypes.c_int(), ctypes.c_char_p()
            status = lib.th_operation_result(handle, byref(outcome), byref(text))
            value = _library.take_json(text)
            if status != _library.OK:
                fields = _library.Error()
                lib.th_operation_error(handle, byref(fields))
                raise error_of(fields)
            made = None
            if self._makes is not None:
                made = Lease(getattr(lib, "th_operation_take_" + self._makes)(handle), _FREES[self._makes])
            return Result(outcome.value, value, made)
        finally:
            self.close()


class Result:
    """What an operation came to: an outcome, JSON, and the handle that it made."""

    def __init__(self, outcome: int, value: Any, made: Optional[Lease]):
        self.outcome, self.value, self.made = outcome, value, made
