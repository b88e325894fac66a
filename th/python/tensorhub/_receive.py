"""Receiving a version tensor by tensor, for engines that load by name; nothing of it is kept."""
from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import select
import sys
from typing import Any, Iterator, Optional, Sequence, Tuple

from . import _library, _tensors
from ._arguments import encoded, label_of
from ._errors import FailedPrecondition, check
from ._handle import Handle, Lease, answer_of
from ._library import byref, lib

# The types' names in torch and numpy, by safetensors' ones.
_NAMES = {name: theirs for theirs, name in _tensors.DTYPES.items()}


def framework_name(dtype: str) -> str:
    """The name of a type of the library in torch and numpy: "bfloat16" of "BF16"."""
    return _NAMES[dtype]


@dataclasses.dataclass(frozen=True)
class Slice:
    """A run of bytes of one tensor in a shard. `data` is good until the next slice is asked for: then it is released, and must not be
    used by way of another object that was made of it (numpy.frombuffer).

    Attributes:
      shape: of the tensor in the shard that is received.
      global_shape: of the whole tensor.
      begin: the index in the whole tensor at which the shard's part begins.
      tensor_bytes: the size of the tensor in the shard.
      offset: of `data` in the tensor of the shard, in bytes.
    """
    name: str
    dtype: str
    shape: tuple
    global_shape: tuple
    begin: tuple
    tensor_bytes: int
    offset: int
    data: memoryview

    @property
    def is_last(self) -> bool:
        """True when it ends its tensor."""
        return self.offset + len(self.data) == self.tensor_bytes


def _framework(given: Optional[str]) -> str:
    if given is None:
        if "torch" in sys.modules:
            return "torch"
        try:
            import numpy  # noqa: F401
            return "numpy"
        except ImportError:
            return "bytes"
    if given not in ("torch", "numpy", "bytes"):
        raise ValueError("framework is %r, none of torch, numpy, bytes" % given)
    return given


def _as_tensor(memory: bytearray, dtype: str, shape: tuple, framework: str, name: str) -> Any:
    if framework == "bytes" or not dtype:
        return memory
    if framework == "torch":
        import torch
        kind = getattr(torch, _NAMES[dtype])
        if not memory:
            return torch.empty(shape, dtype=kind)
        return torch.frombuffer(memory, dtype=kind).reshape(shape)
    import numpy
    try:
        kind = numpy.dtype(_NAMES[dtype])
    except TypeError:
        try:
            import ml_dtypes
            kind = numpy.dtype(getattr(ml_dtypes, _NAMES[dtype]))
        except (ImportError, AttributeError):
            raise ValueError("tensor %r is %s, which numpy does not have: install ml_dtypes, or receive with framework=\"torch\" "
                             "or \"bytes\"" % (name, dtype)) from None
    return numpy.frombuffer(memory, dtype=kind).reshape(shape) if memory else numpy.empty(shape, kind)


class Receive:
    """An iterator over (name, tensor); made by `Hub.receive`. A context manager: it is closed at the end.

    After the last tensor `result` says what it came to. A version that is not available gives no tensor.
    """

    def __init__(self, client: Handle, version: Any, names: Sequence[str], limit_bytes: int, form: str, group: Optional[str],
                 rank: int, timeout: float, framework: Optional[str]):
        if isinstance(names, str):
            raise TypeError("names is a list of names or patterns, not the text %r" % names)
        self._framework = _framework(framework)
        patterns = (ctypes.c_char_p * max(len(names), 1))(*[encoded(name, "a name") for name in names])
        options = _library.ReceiveOptions(form=form, group=group, rank=rank, tensors=patterns,
                                          tensors_count=len(names), limit_bytes=limit_bytes, timeout=timeout)
        handle = ctypes.c_void_p()
        check(client.call(lib.th_receive_open, label_of(version), byref(options), byref(handle)))
        lease = Lease(handle.value, lib.th_receive_close)
        lease.keep.append(client.lease())  # a slice is good for as long as both live
        self._handle = Handle(lease, "this receive is closed: receive again")
        self._memories: dict = {}  # of the tensors whose slices are coming, by name: those of tied ones come in turn
        self._lent: Optional[memoryview] = None  # the bytes of the slice that was given last
        self.result: Optional[dict] = None

    def __enter__(self) -> "Receive":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __iter__(self) -> "Receive":
        return self

    def __next__(self) -> tuple:
        found = self._next_part()
        if found is None:
            raise StopIteration
        return found[0].name, found[1]

    def close(self) -> None:
        """Cancels what is under way. Idempotent. Any thread may call it."""
        try:
            self._handle.call(lib.th_receive_cancel)  # whoever waits for a slice wakes
        except FailedPrecondition:  # it is closed
            return
        self._handle.close()

    def slices(self) -> Iterator[Slice]:
        """The slices as they lie in the library's memory, in place of whole tensors: no byte is copied."""
        try:
            yield from iter(self._next_slice, None)
        finally:
            self.close()

    def parts(self) -> Iterator[Tuple[Slice, Any]]:
        """Each tensor with its last slice, whose `begin` and `global_shape` place it in the whole tensor."""
        try:
            yield from iter(self._next_part, None)
        finally:
            self.close()

    # __next__ calls _next_part, and keeps no generator: one in this object would refer back to it, and the receive would stay open
    # until Python's collector of cycles runs.

    def _next_part(self) -> Optional[Tuple[Slice, Any]]:
        while True:
            piece = self._next_slice()
            if piece is None:
                return None
            if piece.offset == 0:
                self._memories[piece.name] = bytearray(piece.tensor_bytes)
            self._memories[piece.name][piece.offset:piece.offset + len(piece.data)] = piece.data
            if piece.is_last:
                memory = self._memories.pop(piece.name)
                return piece, _as_tensor(memory, piece.dtype, piece.shape, self._framework, piece.name)

    def _next_slice(self) -> Optional[Slice]:
        """None after the last. The end and an error both close the receive."""
        if self.result is not None:
            return None
        found = None
        try:
            found = self._await_slice()
            if found is None:
                self.result = answer_of(self._handle, lib.th_receive_result, None)
        finally:
            if found is None:
                self.close()
        return found

    def _take_back(self) -> None:
        """A later read of the last slice's bytes is a ValueError, not one of memory that is used for others, or is gone."""
        lent, self._lent = self._lent, None
        if lent is not None:
            with contextlib.suppress(BufferError):  # another object refers to the bytes
                lent.release()

    @staticmethod
    def _time_is_over(lease: Lease) -> bool:
        """Whether it was the receive that has ended with DEADLINE_EXCEEDED, and not only the look for a slice."""
        text = ctypes.c_char_p()
        status = lib.th_receive_result(lease.value, None, byref(text))  # another error: it is under way
        _library.take_text(text)
        return status == _library.DEADLINE_EXCEEDED

    def _await_slice(self) -> Optional[Slice]:
        self._take_back()
        found = _library.Slice()
        lease = self._handle.lease()  # keeps the descriptor open while poll waits for it
        poll = None
        while True:
            status = lib.th_receive_next(lease.value, ctypes.c_double(0), byref(found))
            if status != _library.DEADLINE_EXCEEDED or self._time_is_over(lease):
                break
            if poll is None:
                poll = select.poll()
                poll.register(lib.th_receive_fd(lease.value), select.POLLIN)
            poll.poll()  # Ctrl-C raises here
        check(status)
        if found.name is None:
            return None
        rows = range(found.dimensions)
        data = (ctypes.c_char * found.bytes).from_address(found.data) if found.bytes else b""
        if data:
            data.lease = lease  # the memory of a slice that is taken lives as long
        self._lent = memoryview(data).cast("B").toreadonly()
        return Slice(name=found.name.decode(), dtype=(found.dtype or b"").decode(),
                     shape=tuple(found.shape[i] for i in rows), global_shape=tuple(found.global_shape[i] for i in rows),
                     begin=tuple(found.slice_begin[i] for i in rows), tensor_bytes=found.tensor_bytes, offset=found.offset,
                     data=self._lent)
