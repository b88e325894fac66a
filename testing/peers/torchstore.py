"""torchstore over Monarch's actors: the holder puts a tensor, readers get it into their own. Without RDMA its bytes go
through Monarch's calls, with several copies in memory; larger runs than Peer.most_bytes fill this kind of machine."""
import asyncio
import os
import pathlib
import shutil
import subprocess
import sys
import time

from testing.peers import content
from testing.peers import environment
from testing.peers import fleet
from testing.peers import host_memory
from testing.peers import peer
from testing.peers import processes

# Monarch links the driver's library. On a machine without one, this stands in for it; no byte of a run goes through it.
DRIVER_STAND_IN = """
#define NO_DEVICE(name) int name(void) { return 100; }
NO_DEVICE(cuDeviceGet) NO_DEVICE(cuDeviceGetAttribute) NO_DEVICE(cuMemGetHandleForAddressRange) NO_DEVICE(cuPointerGetAttribute)
"""
DRIVER_NAME = "libcuda.so.1"


class Torchstore(peer.Peer):
    name = "torchstore"
    title = "torchstore put + get"
    package = "torchstore"
    imports = "torch, monarch, torchstore"
    memory = (6, 4)
    most_bytes = 64 << 20
    setting = {"tcp": "put and get timed; Monarch's calls carry the bytes, as there is no RDMA"}

    def environment(self, shape):
        return {"TORCHSTORE_RDMA_ENABLED": "0", "CUDA_VISIBLE_DEVICES": ""}

    def complete(self, home, progress):
        stand_in_for_driver(pathlib.Path(home) / self.name, progress)


def has_driver():
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    return DRIVER_NAME in listed


def stand_in_for_driver(home, progress):
    """Beside Monarch's own library, which looks there first. InstallError: there is no C compiler."""
    folders = list(home.glob("lib/python*/site-packages/monarch"))
    if not folders:
        raise environment.InstallError("torchmonarch brought no package monarch")
    library = folders[0] / DRIVER_NAME
    if library.exists() or has_driver():
        return
    if shutil.which("cc") is None:
        raise environment.InstallError("there is neither an NVIDIA driver nor a C compiler (cc) for a stand-in")
    progress("making a stand-in for %s" % DRIVER_NAME)
    source = library.with_suffix(".c")
    source.write_text(DRIVER_STAND_IN, encoding="ascii")
    environment.run(["cc", "-shared", "-fPIC", "-Wl,-soname," + DRIVER_NAME, "-o", str(library), str(source)])


def actors():
    """The classes, which need Monarch to be defined."""
    import torch
    import torchstore
    from monarch.actor import Actor, endpoint

    class Worker(Actor):
        def __init__(self, size):
            self.memory = host_memory.HostMemory(size)
            self.tensor = torch.frombuffer(self.memory.mapping, dtype=torch.uint8)
            self.used_before = 0.0

        @endpoint
        async def fill(self, version: int) -> None:
            content.fill(self.memory.view, version)

        @endpoint
        async def evict(self) -> int:
            host_memory.evict_caches()
            self.used_before = time.process_time()
            return os.getpid()

        @endpoint
        async def put(self) -> None:
            await torchstore.put("weights", self.tensor)

        @endpoint
        async def get(self) -> float:
            await torchstore.get("weights", self.tensor)
            return time.monotonic()

        @endpoint
        async def cpu_seconds(self) -> float:
            return time.process_time() - self.used_before

        @endpoint
        async def matches(self, version: int) -> bool:
            return content.matches(self.memory.view, version)

    return Worker


async def run_once(holder, readers, version):
    """(seconds, the holder's processor seconds, the readers', whether all bytes are right)"""
    await holder.fill.call_one(version)
    pids = [await holder.evict.call_one()] + [pid for _, pid in await readers.evict.call()]
    stores = [pid for pid in processes.descendants() if pid not in pids]
    used_before = processes.cpu_seconds(stores)
    begin = time.monotonic()
    await holder.put.call_one()
    ended = [end for _, end in await readers.get.call()]
    store_used = processes.cpu_seconds(stores) - used_before
    holder_used = await holder.cpu_seconds.call_one()
    readers_used = sum([used for _, used in await readers.cpu_seconds.call()])
    same = all([same for _, same in await readers.matches.call(version)])
    return max(ended) - begin, holder_used + store_used, readers_used, same


async def measure(shape):
    import torchstore
    from monarch.actor import this_host
    await torchstore.initialize()
    worker = actors()
    holder = this_host().spawn_procs(per_host={"gpus": 1}).spawn("holder", worker, shape.bytes)
    readers = this_host().spawn_procs(per_host={"gpus": shape.readers}).spawn("readers", worker, shape.bytes)
    for version in fleet.VERSIONS:
        seconds, holder_cpu, readers_cpu, same = await run_once(holder, readers, version)
    return peer.Run(last_reader_seconds=seconds, holder_cpu_seconds=holder_cpu, readers_cpu_seconds=readers_cpu,
                    bytes=shape.bytes, verified=same)


PEER = Torchstore()

if __name__ == "__main__":
    shape_of_run = peer.Shape.from_json(sys.argv[1])
    fleet.report(fleet.keep_stdout(), lambda: asyncio.run(measure(shape_of_run)))
    os._exit(0)  # Monarch does not end by itself
