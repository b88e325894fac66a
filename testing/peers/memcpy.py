"""memcpy out of shared memory: what no transport between processes of one host can do with less.

Every reader maps the holder's memory beforehand, and copies it into its own with as many threads as there are streams.
"""
import ctypes
import os
import platform
import threading

from testing.peers import fleet
from testing.peers import host_memory
from testing.peers import peer


class Memcpy(peer.Peer):
    name = "memcpy"
    title = "memcpy from shared memory"
    transports = ("same_host",)
    setting = {"same_host": "the floor: mapped beforehand, one thread a stream"}

    def version(self, home):
        return " ".join(platform.libc_ver())


class MemcpyWorker(fleet.Worker):
    def open(self, contact):
        if self.is_holder:
            self.file = os.memfd_create("memcpy-peer")
            os.ftruncate(self.file, self.shape.bytes)
            self.memory = host_memory.HostMemory(self.shape.bytes, self.file)
            return {"path": host_memory.pid_path(self.file)}
        super().open(contact)
        self.source = host_memory.HostMemory(self.shape.bytes, os.open(contact["path"], os.O_RDWR))
        return {}

    def transfer(self):
        if not self.is_holder:
            in_threads(self.shape, self.copy)

    def copy(self, begin, end):
        ctypes.memmove(self.memory.address + begin, self.source.address + begin, end - begin)


def in_threads(shape, copy):
    """Calls copy(begin, end) for every part of the bytes, one thread a stream, and waits for all of them. The first
    exception of any of them is raised."""
    errors = []

    def run(begin, end):
        try:
            copy(begin, end)
        except Exception as error:  # passed on below
            errors.append(error)

    threads = [threading.Thread(target=run, args=part) for part in host_memory.in_threads(shape.bytes, shape.streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


PEER = Memcpy()

if __name__ == "__main__":
    fleet.main(MemcpyWorker)
