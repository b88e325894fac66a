"""libtensorhub.so: its structs and functions by ctypes, as th/c_interface/tensorhub.h declares them.

The library lies beside this file; TENSORHUB_LIBRARY names another one. All functions may be called on any thread, and
ctypes releases the interpreter's lock meanwhile.
"""
from __future__ import annotations

import ctypes
import json
import os
import pathlib
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from ._arguments import encoded, integer, nonzero_seconds

ABI_VERSION = 1
OK, DEADLINE_EXCEEDED = 0, 4
MOVED, ALREADY_THERE, NOT_AVAILABLE = 1, 2, 3


class _Sized(Structure):
    """A struct of tensorhub.h that begins with its size; zero in all else is the default.

    `fields` as callers write them: texts, seconds, integers. TypeError and ValueError naming the field that is none.
    """

    def __init__(self, **fields):
        if fields:  # results are made often, and have none
            kinds = dict(self._fields_)
            fields = {name: _field(value, name, kinds[name]) for name, value in fields.items()}
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


def _field(value: Any, name: str, kind: type) -> Any:
    if kind is c_char_p:
        return encoded(value, name)
    if isinstance(value, kind) or kind is c_void_p or issubclass(kind, ctypes._Pointer):
        return value
    return nonzero_seconds(value, name) if kind is c_double else integer(value, name, kind)


class Error(_Sized):
    _fields_ = [("struct_size", c_size_t), ("code", c_int), ("text", c_char_p), ("word", c_char_p), ("rank", c_char_p),
                ("event", c_char_p)]


class JoinOptions(_Sized):
    _fields_ = [
        ("struct_size", c_size_t), ("server", c_char_p), ("run", c_char_p), ("model", c_char_p), ("group", c_char_p),
        ("rank", c_uint32), ("ranks", c_uint32), ("location", c_char_p), ("spot", c_int32), ("join_timeout", c_double),
        ("data_address", c_char_p), ("data_threads", c_uint32), ("connections_per_source", c_uint32),
        ("uplink_bytes_per_second", c_uint64), ("offload_limit_bytes", c_uint64), ("transports", c_char_p),
        ("strict_transport", c_int32), ("snapshot_limit_bytes", c_uint64), ("rdma_devices", c_char_p),
        ("rdma_registered_limit_bytes", c_uint64), ("staging_limit_bytes", c_uint64), ("attach_limit_bytes", c_uint64),
        ("refuse_attach", c_int32), ("credentials", c_char_p), ("keep_reader_reports", c_int32)]


class Tensor(Structure):
    # Not _Sized: _tensors.as_array makes arrays of them, and sets each one's size.
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("dtype", c_char_p), ("shape", POINTER(c_int64)),
                ("dimensions", c_size_t), ("bytes", c_uint64), ("data", c_void_p), ("global_shape", POINTER(c_int64)),
                ("slice_begin", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("alias_of", c_char_p)]


class RegisterOptions(_Sized):
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("form", c_char_p), ("segment_bytes", c_uint64),
                ("no_checksums", c_int32)]


class PublishOptions(_Sized):
    _fields_ = [("struct_size", c_size_t), ("attributes", c_char_p), ("timeout", c_double), ("derived_from", c_char_p),
                ("snapshot", c_int32), ("snapshot_or_in_place", c_int32), ("after_cuda_event", c_void_p)]


class UnpublishOptions(_Sized):
    _fields_ = [("struct_size", c_size_t), ("drain_timeout", c_double), ("timeout", c_double), ("drop_retained", c_int32),
                ("offload_timeout", c_double)]


class UpdateOptions(_Sized):
    _fields_ = [("struct_size", c_size_t), ("timeout", c_double), ("drain_timeout", c_double), ("floor", c_char_p),
                ("drop_retained", c_int32), ("offload_timeout", c_double), ("when_seeding", c_int32), ("in_place", c_int32),
                ("form", c_char_p)]


class StageOptions(_Sized):
    _fields_ = [("struct_size", c_size_t), ("timeout", c_double), ("floor", c_char_p), ("when_seeding", c_int32)]


class ApplyOptions(_Sized):
    _fields_ = [("struct_size", c_size_t), ("timeout", c_double), ("drain_timeout", c_double), ("drop_retained", c_int32),
                ("offload_timeout", c_double)]


class ReceiveOptions(_Sized):
    _fields_ = [("struct_size", c_size_t), ("form", c_char_p), ("layout", c_char_p), ("group", c_char_p), ("rank", c_uint32),
                ("tensors", POINTER(c_char_p)), ("tensors_count", c_size_t), ("limit_bytes", c_uint64), ("timeout", c_double)]


class Slice(_Sized):
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("dtype", c_char_p), ("shape", POINTER(c_int64)),
                ("dimensions", c_size_t), ("tensor_bytes", c_uint64), ("offset", c_uint64), ("bytes", c_uint64),
                ("data", c_void_p), ("global_shape", POINTER(c_int64)), ("slice_begin", POINTER(c_int64))]


class Progress(_Sized):
    _fields_ = [("struct_size", c_size_t), ("bytes_received", c_uint64), ("bytes_total", c_uint64)]


# The functions whose result is neither a th_status nor an int, each with its type.
_RETURNS = {
    "th_abi_version": c_uint32, "th_last_error": c_char_p, "th_status_name": c_char_p, "th_buffer_bytes": c_uint64,
    "th_operation_take_client": c_void_p, "th_operation_take_buffer": c_void_p, "th_operation_take_controller": c_void_p,
    "th_string_free": None, "th_client_free": None, "th_buffer_free": None, "th_controller_free": None,
    "th_operation_free": None, "th_receive_close": None,
}


def _path() -> str:
    named = os.environ.get("TENSORHUB_LIBRARY")
    return named or str(pathlib.Path(__file__).resolve().parent / "libtensorhub.so")


def _load() -> ctypes.CDLL:
    path = _path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            "tensorhub: its library cannot be loaded: %s. It is a part of the wheel; in a checkout build "
            "//th/c_interface:libtensorhub.so and set TENSORHUB_LIBRARY to it" % error) from error
    for name, result in _RETURNS.items():
        try:
            getattr(library, name).restype = result
        except AttributeError:
            raise ImportError("tensorhub: %s has no %s: it is no libtensorhub.so, or older than this package; install the "
                              "library of the same version" % (path, name)) from None
    found = library.th_abi_version()
    if found != ABI_VERSION:
        raise ImportError("tensorhub: %s has ABI version %d, this package needs %d; install the library of the same version"
                          % (path, found, ABI_VERSION))
    return library


lib = _load()


def take_text(text: c_char_p) -> str:
    """A text of the library's, which is freed; empty where there is none."""
    try:
        return (text.value or b"").decode()
    finally:
        lib.th_string_free(text)


def take_json(text: c_char_p) -> Any:
    """What a text of the library's says, which is freed; None where there is no text."""
    taken = take_text(text)
    return json.loads(taken) if taken else None
