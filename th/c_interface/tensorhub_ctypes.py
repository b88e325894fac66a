"""libtensorhub.so for tests in Python: its structs and functions by ctypes, and a server process."""
import ctypes
import json
import os
import signal
import subprocess
import tempfile
import unittest

OK, CANCELLED, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, ALREADY_EXISTS = 0, 1, 3, 4, 5, 6
RESOURCE_EXHAUSTED, FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED, UNAVAILABLE = 8, 9, 11, 12, 14
MOVED, ALREADY_THERE, NOT_AVAILABLE = 1, 2, 3


class JoinOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("server", ctypes.c_char_p), ("run", ctypes.c_char_p),
        ("model", ctypes.c_char_p), ("group", ctypes.c_char_p), ("rank", ctypes.c_uint32),
        ("ranks", ctypes.c_uint32), ("location", ctypes.c_char_p), ("spot", ctypes.c_int32),
        ("join_timeout", ctypes.c_double), ("data_address", ctypes.c_char_p),
        ("data_threads", ctypes.c_uint32), ("connections_per_source", ctypes.c_uint32),
        ("uplink_bytes_per_second", ctypes.c_uint64), ("offload_limit_bytes", ctypes.c_uint64),
        ("transports", ctypes.c_char_p), ("strict_transport", ctypes.c_int32),
        ("snapshot_limit_bytes", ctypes.c_uint64), ("rdma_devices", ctypes.c_char_p),
        ("rdma_registered_limit_bytes", ctypes.c_uint64), ("staging_limit_bytes", ctypes.c_uint64),
        ("attach_limit_bytes", ctypes.c_uint64), ("refuse_attach", ctypes.c_int32),
        ("credentials", ctypes.c_char_p), ("keep_reader_reports", ctypes.c_int32)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("dimensions", ctypes.c_size_t),
        ("bytes", ctypes.c_uint64), ("data", ctypes.c_void_p),
        ("global_shape", ctypes.POINTER(ctypes.c_int64)),
        ("slice_begin", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("alias_of", ctypes.c_char_p)]


class PublishOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("attributes", ctypes.c_char_p),
                ("timeout", ctypes.c_double), ("derived_from", ctypes.c_char_p),
                ("snapshot", ctypes.c_int32), ("snapshot_or_in_place", ctypes.c_int32),
                ("after_cuda_event", ctypes.c_void_p)]


class UpdateOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("timeout", ctypes.c_double),
                ("drain_timeout", ctypes.c_double), ("floor", ctypes.c_char_p),
                ("drop_retained", ctypes.c_int32), ("offload_timeout", ctypes.c_double),
                ("when_seeding", ctypes.c_int32), ("in_place", ctypes.c_int32),
                ("form", ctypes.c_char_p)]


class RegisterOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("name", ctypes.c_char_p),
                ("form", ctypes.c_char_p), ("segment_bytes", ctypes.c_uint64),
                ("no_checksums", ctypes.c_int32)]


class AttachOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("form", ctypes.c_char_p),
                ("group", ctypes.c_char_p), ("rank", ctypes.c_uint32), ("layout", ctypes.c_char_p),
                ("verify", ctypes.c_int32), ("timeout", ctypes.c_double)]


class AttachedTensor(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("name", ctypes.c_char_p),
                ("dtype", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("dimensions", ctypes.c_size_t), ("bytes", ctypes.c_uint64),
                ("data", ctypes.c_void_p), ("global_shape", ctypes.POINTER(ctypes.c_int64)),
                ("slice_begin", ctypes.POINTER(ctypes.c_int64))]


class StageOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("timeout", ctypes.c_double),
                ("floor", ctypes.c_char_p), ("when_seeding", ctypes.c_int32)]


class ReceiveOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("form", ctypes.c_char_p),
                ("layout", ctypes.c_char_p), ("group", ctypes.c_char_p), ("rank", ctypes.c_uint32),
                ("tensors", ctypes.POINTER(ctypes.c_char_p)), ("tensors_count", ctypes.c_size_t),
                ("limit_bytes", ctypes.c_uint64), ("timeout", ctypes.c_double)]


class Slice(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("name", ctypes.c_char_p),
                ("dtype", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("dimensions", ctypes.c_size_t), ("tensor_bytes", ctypes.c_uint64),
                ("offset", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("data", ctypes.c_void_p),
                ("global_shape", ctypes.POINTER(ctypes.c_int64)),
                ("slice_begin", ctypes.POINTER(ctypes.c_int64))]


class Progress(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("bytes_received", ctypes.c_uint64),
                ("bytes_total", ctypes.c_uint64)]


class Error(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("code", ctypes.c_int), ("text", ctypes.c_char_p),
                ("word", ctypes.c_char_p), ("rank", ctypes.c_char_p), ("event", ctypes.c_char_p)]


def make(kind, **fields):
    return kind(struct_size=ctypes.sizeof(kind), **fields)


class Library:
    """The functions with the types of tensorhub.h."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(os.path.abspath(path))
        self.lib.th_last_error.restype = ctypes.c_char_p
        self.lib.th_status_name.restype = ctypes.c_char_p
        self.lib.th_buffer_bytes.restype = ctypes.c_uint64
        self.lib.th_attached_size.restype = ctypes.c_size_t
        for name in ("client", "buffer", "attached", "controller"):
            getattr(self.lib, "th_operation_take_" + name).restype = ctypes.c_void_p
        for name in ("client", "buffer", "string", "attached", "controller", "operation"):
            getattr(self.lib, "th_%s_free" % name).restype = None
        self.lib.th_receive_close.restype = None

    def error(self):
        return self.lib.th_last_error().decode()

    def check(self, status):
        if status != OK:
            raise AssertionError("%s: %s" % (self.lib.th_status_name(status).decode(), self.error()))

    def text(self, function, *arguments):
        """Calls a function whose last parameter is a char**; its JSON."""
        out = ctypes.c_char_p()
        self.check(function(*arguments, ctypes.byref(out)))
        value = json.loads(out.value)
        self.lib.th_string_free(out)
        return value

    def join(self, server, group, **fields):
        fields.setdefault("model", b"model")
        options = make(JoinOptions, server=server, run=b"run", group=group, **fields)
        client = ctypes.c_void_p()
        self.check(self.lib.th_join(ctypes.byref(options), ctypes.byref(client)))
        return client

    def start(self, function, *arguments):
        """Calls a function that ends in _start; the th_operation."""
        operation = ctypes.c_void_p()
        self.check(function(*arguments, ctypes.byref(operation)))
        return operation

    def await_end(self, operation, patience=60):
        """The status that the operation has come to."""
        self.check(self.lib.th_operation_wait(operation, ctypes.c_double(patience)))
        return self.lib.th_operation_result(operation, None, None)

    def register(self, client, tensors, **fields):
        options = ctypes.byref(make(RegisterOptions, **fields)) if fields else None
        array = (Tensor * len(tensors))(*tensors)
        buffer = ctypes.c_void_p()
        self.check(self.lib.th_register(client, array, ctypes.c_size_t(len(tensors)), options,
                                        ctypes.byref(buffer)))
        return buffer


def tensor(name, memory, dtype=b"U8"):
    shape = (ctypes.c_int64 * 1)(len(memory))
    made = make(Tensor, name=name, dtype=dtype, shape=shape, dimensions=1,
                data=ctypes.addressof(memory))
    made.keep = shape
    return made


class ServerTest(unittest.TestCase):
    """A test that has `library` and a server of its own at `address`."""
    library = None
    server_binary = None

    @classmethod
    def setUpClass(cls):
        cls.th = Library(cls.library)
        cls.state = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        cls.server = subprocess.Popen(
            [cls.server_binary, "--listen=127.0.0.1:0", "--state-dir=" + cls.state.name, "--json"],
            stdout=subprocess.PIPE)
        cls.address = json.loads(cls.server.stdout.readline())["address"].encode()

    @classmethod
    def tearDownClass(cls):
        cls.server.send_signal(signal.SIGTERM)
        cls.server.wait(30)
        cls.server.stdout.close()
        cls.state.cleanup()
