"""What a caller registers, as the library takes it: address, shape, type and place of each tensor; nothing is copied.

torch and numpy are known by what their objects have, and never imported here.
Everything else that speaks the buffer protocol or DLPack is taken, too.
"""
from __future__ import annotations

import ctypes
import dataclasses
import math
import sys
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

from . import _library
from ._arguments import encoded

# safetensors' names of the types, by their names in torch and numpy.
DTYPES = {"bool": "BOOL", "uint8": "U8", "int8": "I8", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
          "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "int16": "I16",
          "uint16": "U16", "float16": "F16", "bfloat16": "BF16", "int32": "I32", "uint32": "U32", "float32": "F32",
          "int64": "I64", "uint64": "U64", "float64": "F64", "complex64": "C64"}
# Of the buffer protocol, in the machine's own sizes.
_FORMATS = {"?": "BOOL", "B": "U8", "c": "U8", "b": "I8", "h": "I16", "H": "U16", "e": "F16", "i": "I32", "I": "U32",
            "f": "F32", "l": "I64", "L": "U64", "q": "I64", "Q": "U64", "d": "F64", "Zf": "C64"}
# By code and bits: kDLInt is 0, kDLUInt 1, kDLFloat 2, kDLBfloat 4, kDLComplex 5, kDLBool 6, the float8 kinds 10 to 14.
_DLPACK = {(0, 8): "I8", (0, 16): "I16", (0, 32): "I32", (0, 64): "I64", (1, 8): "U8", (1, 16): "U16", (1, 32): "U32",
           (1, 64): "U64", (2, 16): "F16", (2, 32): "F32", (2, 64): "F64", (4, 16): "BF16", (6, 8): "BOOL",
           (5, 64): "C64", (10, 8): "F8_E4M3", (11, 8): "F8_E4M3FNUZ", (12, 8): "F8_E5M2", (13, 8): "F8_E5M2FNUZ",
           (14, 8): "F8_E8M0"}


@dataclasses.dataclass(eq=False)
class Described:
    """One tensor as the library takes it. `keep` owns the memory. `place_now()` is its present (address, shape), by which a tensor
    that was moved or resized is found; None where its owner cannot do so."""
    name: str
    dtype: str
    shape: tuple
    address: int
    keep: Any
    place_now: Optional[Callable[[], tuple]] = None
    global_shape: Optional[tuple] = None
    slice_begin: Optional[tuple] = None

    @property
    def place(self) -> tuple:
        return self.address, self.shape


def as_array(described: Sequence[Described]) -> tuple:
    """Returns the tensors as an array of th_tensor, and the objects that must outlive the call that takes it."""
    array = (_library.Tensor * len(described))()
    keep = []

    def dimensions(values: Optional[Sequence[int]]) -> Any:
        if values is None:
            return None
        made = (ctypes.c_int64 * max(len(values), 1))(*values)
        keep.append(made)
        return made

    size = ctypes.sizeof(_library.Tensor)
    for struct, each in zip(array, described):
        struct.struct_size, struct.name, struct.dtype = size, encoded(each.name, "a tensor's name"), each.dtype.encode()
        struct.shape, struct.dimensions = dimensions(each.shape), len(each.shape)
        struct.data = each.address or None
        if each.global_shape is not None:
            struct.global_shape, struct.slice_begin = dimensions(each.global_shape), dimensions(each.slice_begin)
    return array, keep


def named_tensors(values: Any) -> Iterable[tuple[str, Any]]:
    """The tensors of a module, a state dict or another mapping, by name; tied ones under each of their names."""
    if hasattr(values, "state_dict") and callable(values.state_dict):
        try:
            values = values.state_dict(keep_vars=True)
        except TypeError:
            values = values.state_dict()
    if not isinstance(values, Mapping):
        raise TypeError("tensors are expected as a module, a state dict or another mapping of names to arrays, not as %s"
                        % type(values).__name__)
    if not values:
        raise ValueError("there is no tensor to register")
    for name, value in values.items():
        if not isinstance(name, str):
            raise TypeError("the name of a tensor is expected to be a str, not %s %r" % (type(name).__name__, name))
        yield name, value


def _is_contiguous(shape: Sequence[int], strides: Optional[Sequence[int]]) -> bool:
    """True if a tensor of `shape` with `strides`, in elements, is contiguous in row-major order."""
    if strides is None or 0 in shape:
        return True
    expected = 1
    for size, stride in zip(reversed(tuple(shape)), reversed(tuple(strides))):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _require_contiguous(name: str, shape, strides, what_to_do: str) -> None:
    if not _is_contiguous(shape, strides):
        raise ValueError("tensor %r is not contiguous (shape %s, strides %s): %s"
                         % (name, tuple(shape), tuple(strides), what_to_do))


def _require_known_dtype(name: str, dtype: Optional[str], given: Any) -> str:
    if dtype is None:
        raise ValueError("tensor %r has dtype %s, which TensorHub does not know: it knows %s; view it as one of them, or as "
                         "bytes" % (name, given, ", ".join(DTYPES.values())))
    return dtype


def _sharded_dimensions(name: str, value: Any) -> list:
    """The sharded dimensions of a torch DTensor: (tensor dimension, mesh dimension), in the order in which they cut the tensor.

    Mesh dimensions cut from left to right, but for one: FSDP stands left of tensor parallelism, and cuts what that has cut before.
    torch calls such a placement _StridedShard; its split_factor is the number of parts that were there before.
    """
    rank, placements = len(value.shape), list(enumerate(value.placements))
    cuts = [(placement.dim % rank, i) for i, placement in placements if type(placement).__name__ == "Shard"]
    for i, placement in placements:
        kind = type(placement).__name__
        if kind == "_StridedShard":
            dimension = placement.dim % rank
            parts_before = math.prod(value.device_mesh.size(j) for of, j in cuts if of == dimension and j > i)
            if placement.split_factor == parts_before:
                cuts.append((dimension, i))
                continue
        if kind not in ("Shard", "Replicate"):
            raise ValueError("tensor %r is placed as %s: only Shard, Replicate and FSDP over tensor parallelism are plain parts of "
                             "a tensor; redistribute it first" % (name, tuple(value.placements)))
    return cuts


def _begin_of_dtensor(name: str, value: Any, local_shape: tuple) -> tuple:
    """The index in the whole of a torch DTensor at which this rank's part begins.

    Along a dimension that is sharded over n ranks each has ceil(size / n) rows, the last ones what is left.
    """
    cuts, coordinate = _sharded_dimensions(name, value), value.device_mesh.get_coordinate()
    if coordinate is None:
        raise ValueError("tensor %r: this process is no part of its device mesh, and has no shard of it" % name)
    shape, begin = list(value.shape), [0] * len(value.shape)
    for dimension, dimension_of_mesh in cuts:
        rows = -(-shape[dimension] // value.device_mesh.size(dimension_of_mesh))
        skipped = min(rows * coordinate[dimension_of_mesh], shape[dimension])
        begin[dimension] += skipped
        shape[dimension] = min(rows, shape[dimension] - skipped)
    if tuple(shape) != local_shape:
        raise ValueError("tensor %r: its shard has the shape %s, where %s of %s would have %s: redistribute it first"
                         % (name, local_shape, tuple(value.placements), tuple(value.shape), tuple(shape)))
    return tuple(begin)


def _is_dtensor(value: Any) -> bool:
    return hasattr(value, "to_local") and hasattr(value, "placements")


def _local(value: Any) -> Any:
    """A DTensor's part of this rank; another tensor is its own. to_local makes a view for autograd, which costs ten times more."""
    if not _is_dtensor(value):
        return value
    return value._local_tensor if hasattr(value, "_local_tensor") else value.to_local()


def _describe_torch(name: str, value: Any) -> Described:
    if not hasattr(value, "data_ptr"):
        raise TypeError("tensor %r is a %s of torch, not a tensor" % (name, type(value).__name__))
    global_shape = slice_begin = None
    given = value
    if _is_dtensor(given):
        value = _local(given)
        global_shape, slice_begin = tuple(given.shape), _begin_of_dtensor(name, given, tuple(value.shape))
    layout, device = str(getattr(value, "layout", "torch.strided")), getattr(value, "device", None)
    if layout != "torch.strided":
        raise ValueError("tensor %r has layout %s: only strided tensors have one place in memory" % (name, layout))
    kind = getattr(device, "type", "cpu")
    if kind not in ("cpu", "cuda"):
        raise ValueError("tensor %r lies on device %s: TensorHub moves memory of the host and of CUDA devices" % (name, device))
    shape = tuple(value.shape)
    _require_contiguous(name, shape, value.stride(), "register tensor.contiguous(), and keep that one")
    dtype = _require_known_dtype(name, DTYPES.get(str(value.dtype).split(".")[-1]), value.dtype)
    # A view keeps the memory even where the caller gives the tensor another one (`parameter.data = ...`).
    keep = value.detach() if hasattr(value, "detach") else value

    def place_now() -> tuple:
        now = _local(given)  # FSDP gives a DTensor other memory
        return now.data_ptr(), tuple(now.shape)

    return Described(name, dtype, shape, value.data_ptr(), keep, place_now, global_shape, slice_begin)


def _describe_numpy(name: str, value: Any) -> Described:
    interface = value.__array_interface__
    if any((kind.__module__, kind.__name__) == ("numpy", "generic") for kind in type(value).__mro__):
        raise TypeError("tensor %r is a scalar of numpy, which has no memory of its own: register numpy.array(value)" % name)
    if interface["data"][1]:
        raise ValueError("tensor %r is read-only memory: register a copy of it (array.copy())" % name)
    dtype = _require_known_dtype(name, DTYPES.get(str(value.dtype)) if value.dtype.isnative else None, value.dtype)
    strides = None if interface.get("strides") is None else [s // value.dtype.itemsize for s in interface["strides"]]
    _require_contiguous(name, value.shape, strides, "register numpy.ascontiguousarray(array), and keep that one")
    return Described(name, dtype, tuple(value.shape), interface["data"][0], value,
                     lambda: (value.__array_interface__["data"][0], tuple(value.shape)))


class _DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", _DLDevice), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


def _describe_dlpack(name: str, value: Any) -> Described:
    """By the protocol of https://dmlc.github.io/dlpack: the capsule keeps the memory, and its producer frees it."""
    capsule = value.__dlpack__()
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    try:
        tensor = _DLTensor.from_address(pointer_of(capsule, b"dltensor"))
    except ValueError:  # raised by CPython
        raise TypeError("tensor %r gives no DLPack capsule named \"dltensor\" but %r" % (name, capsule)) from None
    if tensor.device.device_type not in (1, 2, 3, 13):  # of the host, CUDA, pinned, managed
        raise ValueError("tensor %r lies on a device that TensorHub does not move memory of (DLPack's type %d)"
                         % (name, tensor.device.device_type))
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = [tensor.strides[i] for i in range(tensor.ndim)] if tensor.strides else None
    _require_contiguous(name, shape, strides, "register a contiguous copy, and keep that one")
    dtype = _require_known_dtype(name, _DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None,
                                 "(%d, %d bits) of DLPack" % (tensor.code, tensor.bits))
    address = tensor.data + tensor.byte_offset if tensor.data else 0
    return Described(name, dtype, shape, address, (capsule, value))


def _describe_buffer(name: str, value: Any) -> Described:
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError("tensor %r is a %s: a torch tensor, a numpy array, or an object with DLPack or the buffer protocol is "
                        "expected" % (name, type(value).__name__)) from None
    if view.readonly:
        raise ValueError("tensor %r is read-only memory: register a bytearray or another writable buffer" % name)
    if not view.c_contiguous:
        raise ValueError("tensor %r is not contiguous: register a contiguous buffer" % name)
    dtype = _require_known_dtype(name, _FORMATS.get(view.format.lstrip("@=<")), "%r of the buffer protocol" % view.format)
    # While this is exported its owner can neither free nor resize it.
    exported = (ctypes.c_char * view.nbytes).from_buffer(value)
    return Described(name, dtype, tuple(view.shape), ctypes.addressof(exported) if view.nbytes else 0, exported)


def gpus_of(tensors: Iterable[Any]) -> set:
    """The GPUs, as torch's devices, on which torch's tensors lie; others lie on none."""
    return {tensor.device for tensor in tensors if getattr(tensor, "is_cuda", False)}


def await_gpus(tensors: Iterable[Any]) -> None:
    """Waits for all that the tensors' GPUs were asked for, on whatever stream."""
    for device in gpus_of(tensors):
        sys.modules["torch"].cuda.synchronize(device)


def await_current_streams(tensors: Iterable[Any]) -> None:
    """Waits for what torch's current stream of each of the tensors' GPUs was asked for, and for that alone: another stream may hold
    a collective that ends only later."""
    for device in gpus_of(tensors):
        sys.modules["torch"].cuda.current_stream(device).synchronize()


def describe(name: str, value: Any) -> Described:
    """What the library needs of one tensor. TypeError, ValueError naming it."""
    module = type(value).__module__.split(".")[0]
    if module == "torch" or hasattr(value, "data_ptr"):
        return _describe_torch(name, value)
    if hasattr(value, "__array_interface__"):
        return _describe_numpy(name, value)
    if hasattr(value, "__dlpack__"):
        return _describe_dlpack(name, value)
    return _describe_buffer(name, value)
