"""Weights that are published in another floating-point type than the one in which their owner keeps them.

torch and numpy cast, by their own rules of rounding and overflow; neither is imported here.
"""
from __future__ import annotations

import sys
from typing import Any, Iterable

from . import _tensors

_FLOATING = {each for each in _tensors.DTYPES if each.startswith(("float", "bfloat"))}
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_FLOATING_TYPES = {_tensors.DTYPES[each] for each in _FLOATING}


class Casts:
    """The caller's tensors that are registered in another type, each with the twin that is registered for it.

    `dtype`: the floating-point type in which tensors of one are registered; None: each is registered itself.
    """

    def __init__(self, dtype: Any = None) -> None:
        self._floating = None if dtype is None else floating_type(dtype)
        self._pairs: dict = {}  # by place: (name, the caller's, its twin); tied tensors have one
        # Whether the twins may be newer than the caller's tensors: a call that writes them is under way, or was interrupted.
        self.in_doubt = False

    def __len__(self) -> int:
        return len(self._pairs)

    def registered(self, described: _tensors.Described, value: Any) -> _tensors.Described:
        """What is registered for the caller's `value`: itself, where it has the type or is of no floating-point type."""
        if self._floating is None or described.dtype == _tensors.DTYPES[self._floating] or described.dtype not in _FLOATING_TYPES:
            return described
        # Empty tensors all lie at the address 0.
        place = described.place + (described.dtype,) if described.address else described.name
        if place not in self._pairs:
            self._pairs[place] = described.name, value, _twin_of(described.name, value, self._floating)
        return _tensors.describe(described.name, self._pairs[place][2])

    def write_twins(self) -> None:
        """Casts the caller's values into what is registered. ValueError naming a tensor of another shape than before."""
        for name, given, twin in self._pairs.values():
            if tuple(given.shape) != tuple(twin.shape):
                raise ValueError("tensor %r has the shape %s now, and had %s when it was registered: register the weights again"
                                 % (name, tuple(given.shape), tuple(twin.shape)))
        self._copy_all((given, twin) for _, given, twin in self._pairs.values())
        self.in_doubt = False

    def read_twins(self) -> None:
        """Casts what is registered into the caller's tensors."""
        self._copy_all((twin, given) for _, given, twin in self._pairs.values())

    def _copy_all(self, pairs: Iterable[tuple]) -> None:
        """From the first to the second of each, and waits for it: the library uses GPU memory outside of torch's streams."""
        for source, target in pairs:
            _copy(source, target)
        _tensors.await_current_streams(twin for _, _, twin in self._pairs.values())


def _copy(source: Any, target: Any) -> None:
    if hasattr(target, "copy_"):
        target.detach().copy_(source.detach())
    else:
        target[...] = source


def floating_type(dtype: Any) -> str:
    """The name of a floating-point type that is given by name, or as torch's or numpy's object for it."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = name.split(".")[-1]
    name = _SHORT.get(name.lower(), name)
    if name not in _FLOATING:
        raise ValueError("dtype is %r: a floating-point type is expected, one of %s" % (dtype, ", ".join(sorted(_FLOATING))))
    return name


def _twin_of(name: str, value: Any, floating: str) -> Any:
    if hasattr(value, "data_ptr"):
        return value.detach().to(getattr(sys.modules["torch"], floating))
    if hasattr(value, "__array_interface__"):
        try:
            return value.astype(floating)
        except TypeError:
            raise ValueError("tensor %r is numpy's, which does not know %s: register it as a tensor of torch" % (name, floating)) from None
    raise TypeError("tensor %r is a %s, which nothing here can cast: register it as a tensor of torch or numpy"
                    % (name, type(value).__name__))
