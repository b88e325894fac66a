"""Calls that wait: begun by the library on a thread of its own, waited for here, so that Ctrl-C is answered at once.

A call that is interrupted, by Ctrl-C or the cancellation of its task, is cancelled. It mostly ends within milliseconds; one
that must end by itself, as the memory is its own until then (an unpublish), is left to a thread that waits for it.
"""
from __future__ import annotations

import asyncio
import ctypes
import queue
import select
import threading
from typing import Any, Callable, Optional

from . import _library
from ._errors import check, error_of
from ._library import byref, lib

# What an interrupted caller waits for its call to end, before the reaper does.
_END_SECONDS = 0.15

_reaper_lock = threading.Lock()
_reaped: Optional["queue.SimpleQueue[Operation]"] = None


def _reap(operations: "queue.SimpleQueue[Operation]") -> None:
    while True:
        operations.get().close()


def _leave_to_reaper(operation: "Operation") -> None:
    global _reaped
    with _reaper_lock:
        if _reaped is None:
            _reaped = queue.SimpleQueue()
            threading.Thread(target=_reap, args=(_reaped,), name="tensorhub-reaper", daemon=True).start()
    _reaped.put(operation)


class Operation:
    """One call under way. `keep` lives until it has ended: its arguments, and the objects whose handles it uses.

    Not thread-safe; each call makes one, and ends it.
    """

    def __init__(self, start: Callable[..., int], *arguments: Any, keep: Any = None):
        self._handle = ctypes.c_void_p()
        self._keep = (keep, arguments)
        check(start(*arguments, byref(self._handle)))

    def fileno(self) -> int:
        return lib.th_operation_fd(self._handle)

    def _is_over(self) -> bool:
        return lib.th_operation_wait(self._handle, ctypes.c_double(0)) == _library.OK

    def cancel(self) -> None:
        lib.th_operation_cancel(self._handle)

    def close(self) -> None:
        """Cancels it if it is under way, and waits for its end."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        lib.th_operation_free(handle)
        self._keep = None

    def progress(self) -> tuple[int, int]:
        """Bytes received, and all there are; zeros before any has come."""
        progress = _library.Progress()
        check(lib.th_operation_progress(self._handle, byref(progress)))
        return progress.bytes_received, progress.bytes_total

    # ---- waiting

    def run(self, on_progress: Callable[[int, int], None] | None = None) -> "Result":
        """Waits for the end, and returns what it came to or raises its error."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        try:
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
        self.cancel()
        if lib.th_operation_wait(self._handle, ctypes.c_double(_END_SECONDS)) == _library.OK:
            self.close()
        else:
            _leave_to_reaper(self)

    def _result(self) -> "Result":
        try:
            outcome, text = ctypes.c_int(), ctypes.c_char_p()
            status = lib.th_operation_result(self._handle, byref(outcome), byref(text))
            value = _library.take_json(text)
            if status != _library.OK:
                fields = _library.Error()
                lib.th_operation_error(self._handle, byref(fields))
                raise error_of(fields)
            handles = {kind: getattr(lib, "th_operation_take_" + kind)(self._handle)
                       for kind in ("client", "buffer", "controller")}
            return Result(outcome.value, value, handles)
        finally:
            self.close()


class Result:
    """What an operation came to: an outcome, JSON, and the handle that it made."""

    def __init__(self, outcome: int, value: Any, handles: dict):
        self.outcome, self.value, self._handles = outcome, value, handles

    def handle(self, kind: str) -> int:
        return self._handles[kind]
