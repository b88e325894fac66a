"""Ray's object store on one node: an actor puts the bytes, the readers' actors get them and copy them into their own
memory (ray.get alone returns a read-only view of the store's memory, which a reader that keeps weights has to leave).

The put is timed too: the bytes are in the holder's own memory before. Processor time of the store's own processes counts
as the holder's.
"""
import os
import shutil
import sys
import tempfile
import time

from testing.peers import content
from testing.peers import fleet
from testing.peers import host_memory
from testing.peers import peer
from testing.peers import processes

# The store holds the version before until its references are gone.
STORED_VERSIONS = 3
FEWEST_STORE_BYTES = 256 << 20
# Ray's sockets lie below its folder, and the path of a socket is short.
MOST_FOLDER_CHARACTERS = 40


class RayStore(peer.Peer):
    name = "ray"
    title = "Ray object store"
    transports = ("same_host",)
    package = "ray"
    memory = (1 + STORED_VERSIONS, 1)
    setting = {"same_host": "one put, then get and copy into the reader's own memory"}

    def environment(self, shape):
        return {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class Actor:
    """A holder or a reader, in a process of Ray's. The clock is the machine's."""

    def __init__(self, size):
        self.memory = host_memory.HostMemory(size)
        self.used_before = 0.0

    def ready(self):
        return os.getpid()

    def fill(self, version):
        self.reference = None
        content.fill(self.memory.view, version)

    def evict(self):
        host_memory.evict_caches()
        self.used_before = time.process_time()

    def put(self):
        import numpy
        import ray
        self.reference = ray.put(numpy.frombuffer(self.memory.mapping, dtype=numpy.uint8))
        return [self.reference]  # in a list, or Ray would fetch it for the caller

    def receive(self, references):
        import ray
        received = ray.get(references[0])
        self.memory.view[:] = memoryview(received)
        return time.monotonic()

    def cpu_seconds(self):
        return time.process_time() - self.used_before

    def matches(self, version):
        return content.matches(self.memory.view, version)


def start(ray, shape, folder):
    ray.init(num_cpus=shape.readers + 1, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1",
             logging_level="ERROR", object_store_memory=max(STORED_VERSIONS * shape.bytes, FEWEST_STORE_BYTES),
             _temp_dir=folder)
    actor = ray.remote(num_cpus=1)(Actor)
    return actor.remote(shape.bytes), [actor.remote(shape.bytes) for _ in range(shape.readers)]


def run_once(ray, holder, readers, version, stores):
    """(seconds, the holder's processor seconds, the readers', whether all bytes are right)"""
    ray.get(holder.fill.remote(version))
    ray.get([actor.evict.remote() for actor in [holder] + readers])
    used_before = processes.cpu_seconds(stores)
    begin = time.monotonic()
    references = ray.get(holder.put.remote())
    ended = ray.get([reader.receive.remote(references) for reader in readers])
    used = ray.get([actor.cpu_seconds.remote() for actor in [holder] + readers])
    store_used = processes.cpu_seconds(stores) - used_before
    same = ray.get([reader.matches.remote(version) for reader in readers])
    return max(ended) - begin, used[0] + store_used, sum(used[1:]), all(same)


def measure(shape):
    import ray
    folder = tempfile.mkdtemp(prefix="r", dir=None if len(tempfile.gettempdir()) < MOST_FOLDER_CHARACTERS else "/tmp")
    try:
        holder, readers = start(ray, shape, folder)
        actors = set(ray.get([actor.ready.remote() for actor in [holder] + readers]))
        stores = [pid for pid in processes.descendants() if pid not in actors]
        for version in fleet.VERSIONS:
            seconds, holder_cpu, readers_cpu, same = run_once(ray, holder, readers, version, stores)
        return peer.Run(last_reader_seconds=seconds, holder_cpu_seconds=holder_cpu, readers_cpu_seconds=readers_cpu,
                        bytes=shape.bytes, verified=same)
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


PEER = RayStore()

if __name__ == "__main__":
    shape_of_run = peer.Shape.from_json(sys.argv[1])
    fleet.report(fleet.keep_stdout(), lambda: measure(shape_of_run))
