"""Weights that are published in another floating-point type than the one in which their owner keeps them.

torch and numpy cast, by their own rules of rounding and overflow; neither is imported here.
"""
from __future__ import annotations

import sys
from typing import Any, Mapping

from . import _tensors

_FLOATING = {each for each in _tensors.DTYPES if each.startswith(("float", "bfloat"))}


class Casts:
    """The caller's tensors that are registered in another type, each with the twin that is registered for it."""

    def __init__(self) -> None:
        self._pairs: list = []

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, name: str, given: Any, twin: Any) -> None:
        self._pairs.append((name, given, twin))

    def write_twins(self) -> None:
        """Casts the caller's values into what is registered. ValueError naming a tensor of another shape than before."""
        for name, given, twin in self._pairs:
            if tuple(given.shape) != tuple(twin.shape):
                raise ValueError("tensor %r has the shape %s now, and had %s when it was registered: register the weights again"
                                 % (name, tuple(given.shape), tuple(twin.shape)))
        for _, given, twin in self._pairs:
            _copy(given, twin)
        self._await_devices()

    def read_twins(self) -> None:
        """Casts what is registered into the caller's tensors."""
        for _, given, twin in self._pairs:
            _copy(twin, given)
        self._await_devices()

    def _await_devices(self) -> None:
        """The library reads and writes GPU memory outside of torch's streams."""
        for device in {twin.device for _, _, twin in self._pairs if getattr(getattr(twin, "device", None), "type", "") == "cuda"}:
            sys.modules["torch"].cuda.current_stream(device).synchronize()


def _copy(source: Any, target: Any) -> None:
    if hasattr(target, "copy_"):
        target.detach().copy_(source.detach())
    else:
        target[...] = source


def floating_type(dtype: Any) -> str:
    """The name of a floating-point type that is given by name, or as torch's or numpy's object for it."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = name.split(".")[-1]
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


def cast(named: Mapping[str, Any], dtype: Any) -> tuple[Casts, dict[str, Any]]:
    """What is to be registered for `named`, in which every floating-point tensor has the type, and the casts between them.

    A tensor that has the type already, or is of no floating-point type, is registered itself. Tied tensors have one twin.
    """
    floating = floating_type(dtype)
    wanted, from_types = _tensors.DTYPES[floating], {_tensors.DTYPES[each] for each in _FLOATING}
    casts, twins, registered = Casts(), {}, {}
    for name, value in named.items():
        described = _tensors.describe(name, value)
        if described.dtype == wanted or described.dtype not in from_types:
            registered[name] = value
            continue
        place = (described.address, described.shape, described.dtype)
        if place not in twins:
            twins[place] = _twin_of(name, value, floating)
            casts.add(name, value, twins[place])
        registered[name] = twins[place]
    return casts, registered
