"""UCX: every reader gets the holder's registered memory, one-sided, into its own (UCP's ucp_get_nbx).

The library comes from a wheel and is called through ctypes: a C compiler is not needed. Each call into UCX costs some
200 ns more than from C, against 256 KiB that it moves over TCP and more on the same host.
"""
import ctypes
import os
import select

from testing.peers import fleet
from testing.peers import peer

# Of ucp.h and ucs/type/status.h.
API_MAJOR, API_MINOR = 1, 18
FEATURE_RMA, FEATURE_WAKEUP = 1 << 1, 1 << 4
PARAM_FEATURES = 1 << 0
WORKER_PARAM_THREAD_MODE = 1 << 0
MEM_MAP_PARAM_ADDRESS_AND_LENGTH = 1 << 0 | 1 << 1
EP_PARAM_REMOTE_ADDRESS = 1 << 0
OP_ATTR_MEMH = 1 << 8
THREAD_MODE_SINGLE = 0
IN_PROGRESS, ERR_BUSY = 1, -15
ERR_LAST = 2**64 - 100

# How often a command is looked for while there is progress, and how long one sleeps at most without any.
PROGRESS_PER_LOOK = 64
SLEEP_MILLISECONDS = 1000


# Each structure has the fields that are set here; a mask says which these are, and UCX reads no other.
class Params(ctypes.Structure):
    _fields_ = [("field_mask", ctypes.c_uint64), ("features", ctypes.c_uint64), ("rest", ctypes.c_char * 256)]


class WorkerParams(ctypes.Structure):
    _fields_ = [("field_mask", ctypes.c_uint64), ("thread_mode", ctypes.c_int), ("rest", ctypes.c_char * 512)]


class MemMapParams(ctypes.Structure):
    _fields_ = [("field_mask", ctypes.c_uint64), ("address", ctypes.c_void_p), ("length", ctypes.c_size_t),
                ("rest", ctypes.c_char * 256)]


class EndpointParams(ctypes.Structure):
    _fields_ = [("field_mask", ctypes.c_uint64), ("address", ctypes.c_char_p), ("rest", ctypes.c_char * 512)]


class RequestParams(ctypes.Structure):
    _fields_ = [("op_attr_mask", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("request", ctypes.c_void_p),
                ("callback", ctypes.c_void_p), ("datatype", ctypes.c_uint64), ("user_data", ctypes.c_void_p),
                ("reply_buffer", ctypes.c_void_p), ("memory_type", ctypes.c_int), ("recv_info", ctypes.c_void_p),
                ("memory_handle", ctypes.c_void_p), ("rest", ctypes.c_char * 128)]


class Ucx(peer.Peer):
    name = "ucx"
    title = "UCX get"
    transports = peer.TRANSPORTS
    package = "libucx-cu12"
    setting = {"tcp": "UCX_TLS=tcp, segments of 256 KiB, a get a stream; the holder sleeps when idle, readers yield",
               "same_host": "UCX_TLS=sm (CMA), a get a stream; the holder sleeps when idle, readers yield"}

    def environment(self, shape):
        return variables(shape)


def variables(shape):
    """UCX's configuration, in the environment of its processes."""
    if shape.transport == "same_host":
        return {"UCX_TLS": "sm,self", "UCX_LOG_LEVEL": "error"}
    return {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo", "UCX_LOG_LEVEL": "error", "UCX_TCP_TX_SEG_SIZE": "256k",
            "UCX_TCP_RX_SEG_SIZE": "256k", "UCX_TCP_CM_REUSEADDR": "y"}


class UcxWorker(fleet.Worker):
    def open(self, contact):
        super().open(contact)
        import libucx  # of this peer's environment
        libucx.load_library()
        self.ucp = ctypes.PyDLL(os.path.join(os.path.dirname(libucx.__file__), "lib", "libucp.so.0"))
        self.ucp.ucp_get_nbx.restype = ctypes.c_uint64
        self.context, self.worker, self.handle = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.open_worker()
        self.register()
        if self.is_holder:
            return {"address": self.address_of_worker().hex(), "key": self.packed_key().hex(), "memory": self.memory.address}
        self.connect_to(contact)
        return {}

    def check(self, status, what):
        if status != 0:
            self.ucp.ucs_status_string.restype = ctypes.c_char_p
            raise peer.Failed("%s: %s" % (what, self.ucp.ucs_status_string(status).decode()))

    def open_worker(self):
        params = Params(field_mask=PARAM_FEATURES, features=FEATURE_RMA | FEATURE_WAKEUP)
        self.check(self.ucp.ucp_init_version(API_MAJOR, API_MINOR, ctypes.byref(params), None, ctypes.byref(self.context)),
                   "ucp_init")
        worker_params = WorkerParams(field_mask=WORKER_PARAM_THREAD_MODE, thread_mode=THREAD_MODE_SINGLE)
        self.check(self.ucp.ucp_worker_create(self.context, ctypes.byref(worker_params), ctypes.byref(self.worker)),
                   "ucp_worker_create")
        event_fd = ctypes.c_int()
        self.check(self.ucp.ucp_worker_get_efd(self.worker, ctypes.byref(event_fd)), "ucp_worker_get_efd")
        self.events = select.poll()
        self.events.register(0, select.POLLIN)
        self.events.register(event_fd.value, select.POLLIN)
        self.commands = select.poll()
        self.commands.register(0, select.POLLIN)

    def register(self):
        params = MemMapParams(field_mask=MEM_MAP_PARAM_ADDRESS_AND_LENGTH, address=self.memory.address,
                              length=self.memory.size)
        self.check(self.ucp.ucp_mem_map(self.context, ctypes.byref(params), ctypes.byref(self.handle)), "ucp_mem_map")

    def address_of_worker(self):
        address, length = ctypes.c_void_p(), ctypes.c_size_t()
        self.check(self.ucp.ucp_worker_get_address(self.worker, ctypes.byref(address), ctypes.byref(length)),
                   "ucp_worker_get_address")
        return ctypes.string_at(address, length.value)

    def packed_key(self):
        key, length = ctypes.c_void_p(), ctypes.c_size_t()
        self.check(self.ucp.ucp_rkey_pack(self.context, self.handle, ctypes.byref(key), ctypes.byref(length)),
                   "ucp_rkey_pack")
        return ctypes.string_at(key, length.value)

    def connect_to(self, contact):
        self.endpoint, self.key, self.source = ctypes.c_void_p(), ctypes.c_void_p(), contact["memory"]
        self.holder_address = bytes.fromhex(contact["address"])
        params = EndpointParams(field_mask=EP_PARAM_REMOTE_ADDRESS, address=self.holder_address)
        self.check(self.ucp.ucp_ep_create(self.worker, ctypes.byref(params), ctypes.byref(self.endpoint)), "ucp_ep_create")
        self.check(self.ucp.ucp_ep_rkey_unpack(self.endpoint, bytes.fromhex(contact["key"]), ctypes.byref(self.key)),
                   "ucp_ep_rkey_unpack")

    def transfer(self):
        if self.is_holder:
            return  # it sends in next_command
        params = RequestParams(op_attr_mask=OP_ATTR_MEMH, memory_handle=self.handle)
        step = -(-self.memory.size // self.shape.streams)
        requests = [self.ucp.ucp_get_nbx(self.endpoint, ctypes.c_void_p(self.memory.address + offset),
                                         ctypes.c_size_t(min(step, self.memory.size - offset)),
                                         ctypes.c_uint64(self.source + offset), self.key, ctypes.byref(params))
                    for offset in range(0, self.memory.size, step)]
        for request in requests:
            self.await_request(request)

    def await_request(self, request):
        if request == 0:
            return
        if request >= ERR_LAST:
            self.check(request - 2**64, "ucp_get_nbx")
        handle, progress, worker = ctypes.c_void_p(request), self.ucp.ucp_worker_progress, self.worker
        status = self.ucp.ucp_request_check_status(handle)
        while status == IN_PROGRESS:
            if not progress(worker):
                os.sched_yield()
            status = self.ucp.ucp_request_check_status(handle)
        self.ucp.ucp_request_free(handle)
        self.check(status, "ucp_get_nbx")

    def next_command(self, commands):
        if self.memory is None:  # nothing is open yet
            return commands.readline()
        while True:
            for _ in range(PROGRESS_PER_LOOK):
                if not self.ucp.ucp_worker_progress(self.worker):
                    break
            if self.commands.poll(0):
                return commands.readline()
            status = self.ucp.ucp_worker_arm(self.worker)
            if status == ERR_BUSY:
                continue
            self.check(status, "ucp_worker_arm")
            self.events.poll(SLEEP_MILLISECONDS)


PEER = Ucx()

if __name__ == "__main__":
    fleet.main(UcxWorker)
