"""torch.distributed's gloo: the holder broadcasts to all readers, as trainers that sync weights in a group do."""
import datetime

from testing.peers import fleet
from testing.peers import peer

CHUNK_BYTES = 16 << 20
GROUP_TIMEOUT = datetime.timedelta(seconds=60)


class Gloo(peer.Peer):
    name = "gloo"
    title = "gloo broadcast"
    # torch's wheel links CUDA's libraries for the CPU too, and PyPI has no other wheel: torch without what it declares,
    # and then what it links.
    requirements = (
        ["--no-deps", "torch==2.13.0"],
        ["numpy==2.4.6", "filelock", "typing_extensions", "sympy", "networkx", "jinja2", "fsspec"],
        ["--no-deps", "nvidia-cudnn-cu13==9.20.0.48", "nvidia-cusparselt-cu13==0.8.1", "nvidia-nccl-cu13==2.29.7",
         "nvidia-nvshmem-cu13==3.4.5", "nvidia-cublas==13.1.1.3", "nvidia-cuda-cupti==13.0.85",
         "nvidia-cuda-nvrtc==13.0.88", "nvidia-cuda-runtime==13.0.96", "nvidia-cufft==12.0.0.61",
         "nvidia-cufile==1.15.1.6", "nvidia-curand==10.4.0.35", "nvidia-cusparse==12.6.3.3", "nvidia-nvjitlink==13.5.37"],
    )
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
