"""torch.distributed's gloo: the holder broadcasts to all readers, as trainers that sync weights in a group do."""
import datetime

from testing.peers import fleet
from testing.peers import peer

CHUNK_BYTES = 16 << 20
GROUP_TIMEOUT = datetime.timedelta(seconds=60)


class Gloo(peer.Peer):
    name = "gloo"
    title = "gloo broadcast"
    # Its wheel links CUDA's libraries for the CPU too, and PyPI has no other; what it declares besides is left out.
    package = "torch"
    setting = {"tcp": "asynchronous broadcasts of 16 MiB, one connection a pair"}

    def environment(self, shape):
        return {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}


class GlooWorker(fleet.Worker):
    def open(self, contact):
        super().open(contact)
        import torch  # of this peer's environment
        import torch.distributed as distributed
        torch.set_num_threads(1)
        self.distributed = distributed
        self.chunks = torch.frombuffer(self.memory.mapping, dtype=torch.uint8).split(CHUNK_BYTES)
        # The holder's store takes a port of the system's choice.
        self.store = distributed.TCPStore("127.0.0.1", contact.get("port", 0), self.shape.readers + 1, self.is_holder,
                                          GROUP_TIMEOUT, wait_for_workers=False)
        return {"port": self.store.port}

    def connect(self):
        self.distributed.init_process_group("gloo", store=self.store, rank=self.index, world_size=self.shape.readers + 1,
                                            timeout=GROUP_TIMEOUT)

    def transfer(self):
        for work in [self.distributed.broadcast(chunk, 0, async_op=True) for chunk in self.chunks]:
            work.wait()


PEER = Gloo()

if __name__ == "__main__":
    fleet.main(GlooWorker)
