"""process_vm_readv out of the holder's private memory: one copy by the kernel, with no transport around it."""
import ctypes
import os
import platform

from testing.peers import fleet
from testing.peers import memcpy
from testing.peers import peer

PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = -1
MOST_BYTES_OF_A_CALL = 1 << 30


class IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class ProcessVmReadv(peer.Peer):
    name = "process_vm_readv"
    title = "process_vm_readv"
    transports = ("same_host",)
    setting = {"same_host": "one thread a stream"}

    def version(self, home):
        return "Linux " + platform.release()


class ProcessVmReadvWorker(fleet.Worker):
    def open(self, contact):
        super().open(contact)
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.process_vm_readv.restype = ctypes.c_ssize_t
        if self.is_holder:
            # Where Yama restricts it to ancestors; without Yama it fails, and is not needed.
            self.libc.prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)
            return {"pid": os.getpid(), "address": self.memory.address}
        self.source = contact
        return {}

    def transfer(self):
        if not self.is_holder:
            memcpy.in_threads(self.shape, self.read)

    def read(self, begin, end):
        while begin < end:
            length = min(end - begin, MOST_BYTES_OF_A_CALL)
            local = IoVec(self.memory.address + begin, length)
            remote = IoVec(self.source["address"] + begin, length)
            read = self.libc.process_vm_readv(self.source["pid"], ctypes.byref(local), ctypes.c_ulong(1),
                                              ctypes.byref(remote), ctypes.c_ulong(1), ctypes.c_ulong(0))
            if read <= 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            begin += read


PEER = ProcessVmReadv()

if __name__ == "__main__":
    fleet.main(ProcessVmReadvWorker)
