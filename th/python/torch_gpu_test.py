"""torch's CUDA tensors, from one process's GPU memory into another's: what the fake driver cannot show.

tools/gpu_check runs it, as

  python3 torch_gpu_test.py LIBRARY SERVER [--device cpu] [--bytes N]

Needs torch, and a GPU unless --device cpu tries the test itself out. The trainer is this process; each rollout is
another one, which tells what it received.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import unittest

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("library", help="libtensorhub.so")
PARSER.add_argument("server", help="the program tensorhub_server")
PARSER.add_argument("--device", default="cuda", help="where the tensors are (%(default)s)")
PARSER.add_argument("--bytes", type=int, default=1 << 30, help="weights in the test of speed (%(default)s)")
PARSER.add_argument("--rollout", help=argparse.SUPPRESS)  # a JSON object: this process is a rollout
OPTIONS = PARSER.parse_args()
os.environ["TENSORHUB_LIBRARY"] = os.path.abspath(OPTIONS.library)
os.environ["TENSORHUB_BIN"] = os.path.dirname(os.path.abspath(OPTIONS.server))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import tensorhub  # noqa: E402
import torch  # noqa: E402
from server_test_case import ServerTestCase  # noqa: E402

ON_GPU = OPTIONS.device != "cpu"
WITHIN_HOST = "cuda_ipc" if ON_GPU else "same_host"
ROUNDS = 7


def synchronize():
    if ON_GPU:
        torch.cuda.synchronize()


def random_like(tensor, seed):
    """Bits of any kind, the same for the same seed on every device."""
    places = torch.arange(tensor.numel() * tensor.element_size(), device=tensor.device)
    bits = (((places + seed * 7919) * 2654435761) >> 13).to(torch.uint8)
    return bits.view(tensor.dtype).view(tensor.shape)


def same_bits(a, b):
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def tensors_of(shapes, device):
    return {"t%d" % i: torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
            for i, (shape, dtype) in enumerate(shapes)}


def be_rollout(request):
    """Updates `rounds` times from a version that holds random_like(tensor, seed + its place); tells what came of each."""
    tensors = tensors_of(request["shapes"], request["device"])
    with tensorhub.join(request["server"], run="gpu", model=request["model"], group="rollout",
                        transports=request["transports"]) as hub:
        weights = hub.register(tensors)
        for line in sys.stdin:
            command = json.loads(line)
            synchronize()
            begin = time.monotonic()
            result = weights.update(command["version"], timeout=60)
            seconds = time.monotonic() - begin
            expected = (random_like(tensor, command["seed"] + i) for i, tensor in enumerate(tensors.values()))
            equal = [same_bits(tensor, value) for tensor, value in zip(tensors.values(), expected)]
            print(json.dumps({"equal": all(equal), "seconds": seconds, "transports": [s["transport"] for s in result.sources],
                              "sources": [dict(s) for s in result.sources], "stall": result.stall}), flush=True)


class Rollout:
    def __init__(self, server, model, shapes, device=OPTIONS.device, transports=(), **environment):
        request = {"server": server, "model": model, "shapes": shapes, "device": device, "transports": list(transports)}
        arguments = [sys.executable, os.path.abspath(__file__), OPTIONS.library, OPTIONS.server, "--device", OPTIONS.device]
        self.process = subprocess.Popen(arguments + ["--rollout", json.dumps(request)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})

    def update(self, version, seed):
        self.process.stdin.write(json.dumps({"version": version, "seed": seed}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError("the rollout ended with status %d" % self.process.wait())
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


class TorchGpuTest(ServerTestCase):
    SHAPES = [((257, 129), "float32"), ((1000, 1000), "bfloat16"), ((511, 3), "float8_e4m3fn"), ((7,), "int64"),
              ((4096, 1024), "bfloat16"), ((), "float32")]

    def setUp(self):
        self.model = self.id().rsplit(".", 1)[-1]
        self.hub = tensorhub.join(self.server.address, run="gpu", model=self.model, group="trainer", snapshot_limit="2GiB")
        self.addCleanup(self.hub.leave)

    def rollout(self, shapes=None, **options):
        rollout = Rollout(self.server.address, self.model, shapes or self.SHAPES, **options)
        self.addCleanup(rollout.end)
        return rollout

    def fill(self, tensors, seed):
        for i, tensor in enumerate(tensors.values()):
            tensor.copy_(random_like(tensor, seed + i))

    def moves(self, rollout, transport, trainer_device=OPTIONS.device, versions=2):
        tensors = tensors_of(self.SHAPES, trainer_device)
        weights = self.hub.register(tensors)
        for version in range(1, versions + 1):
            self.fill(tensors, seed=100 * version)
            synchronize()
            with weights.published(version):
                answer = rollout.update(version, seed=100 * version)
            self.assertTrue(answer["equal"], answer)
            self.assertEqual(set(answer["transports"]), {transport}, answer["sources"])

    def test_within_the_gpu(self):
        self.moves(self.rollout(), WITHIN_HOST)

    def test_through_memory_of_the_host(self):
        self.moves(self.rollout(transports=["same_host"]), "same_host")

    def test_over_tcp(self):
        self.moves(self.rollout(transports=["tcp"]), "tcp")

    @unittest.skipUnless(ON_GPU, "both would be of the host")
    def test_from_the_gpu_to_the_host(self):
        self.moves(self.rollout(device="cpu"), "same_host")

    @unittest.skipUnless(ON_GPU, "both would be of the host")
    def test_from_the_host_to_the_gpu(self):
        self.moves(self.rollout(), WITHIN_HOST, trainer_device="cpu")

    @unittest.skipUnless(ON_GPU, "both would be of the host")
    def test_expandable_segments(self):
        self.moves(self.rollout(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"), WITHIN_HOST)

    @unittest.skipUnless(ON_GPU, "there are no events of the host")
    def test_publishes_what_a_stream_is_still_writing(self):
        shapes = [((64 << 20,), "float32")]
        tensors = tensors_of(shapes, OPTIONS.device)
        weights = self.hub.register(tensors)
        value = random_like(tensors["t0"], 5)
        rollout = self.rollout(shapes)
        stream = torch.cuda.Stream()
        synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1 << 30)  # cycles: half a second
            tensors["t0"].copy_(value)
            event = torch.cuda.Event()
            event.record(stream)
        self.assertFalse(event.query(), "the stream had ended before: nothing was shown")
        weights.publish(1, after_cuda_event=event.cuda_event)
        self.assertTrue(event.query())
        self.assertTrue(rollout.update(1, seed=5)["equal"])
        weights.unpublish()

    def test_a_snapshot_frees_the_gpu_at_once(self):
        tensors = tensors_of(self.SHAPES, OPTIONS.device)
        weights = self.hub.register(tensors)
        self.fill(tensors, seed=1)
        synchronize()
        weights.publish(1, snapshot=True)
        self.fill(tensors, seed=1000)
        synchronize()
        self.assertTrue(self.rollout().update(1, seed=1)["equal"])

    @unittest.skipUnless(ON_GPU, "torch keeps no cache of the host's memory")
    def test_memory_that_torch_gives_back_stays_as_long_as_it_is_registered(self):
        tensors = tensors_of(self.SHAPES, OPTIONS.device)
        weights = self.hub.register(tensors)
        self.fill(tensors, seed=1)
        synchronize()
        weights.publish(1)
        weights.await_published()
        tensors.clear()
        torch.cuda.empty_cache()
        self.assertTrue(self.rollout().update(1, seed=1)["equal"])
        weights.unpublish()

    @unittest.skipUnless(ON_GPU, "an index of a GPU")
    def test_dlpack_of_another_library_is_taken(self):
        try:
            import cupy
        except ImportError:
            self.skipTest("there is no cupy")
        array = cupy.zeros(1000, dtype=cupy.float32)
        tensor = torch.from_dlpack(array)
        weights = self.hub.register({"t0": array})
        tensor.copy_(random_like(tensor, 3))
        synchronize()
        with weights.published(1):
            self.assertTrue(self.rollout([((1000,), "float32")]).update(1, seed=3)["equal"])

    def test_speed(self):
        """Figures, beside torch's own copy of as many bytes on the same device."""
        shapes = [((OPTIONS.bytes // 64,), "float32")] * 16
        tensors = tensors_of(shapes, OPTIONS.device)
        others = tensors_of(shapes, OPTIONS.device)
        weights = self.hub.register(tensors)
        rollout = self.rollout(shapes)
        ours, copies, stalls = [], [], []
        for version in range(1, ROUNDS + 2):  # the first warms up
            self.fill(tensors, seed=100 * version)
            synchronize()
            begin = time.monotonic()
            for name, tensor in tensors.items():
                others[name].copy_(tensor)
            synchronize()
            copied = time.monotonic() - begin
            with weights.published(version):
                answer = rollout.update(version, seed=100 * version)
            self.assertTrue(answer["equal"], answer)
            self.assertEqual(set(answer["transports"]), {WITHIN_HOST}, answer["sources"])
            if version > 1:
                ours.append(answer["seconds"])
                stalls.append(answer["stall"])
                copies.append(copied)
        update, copy, stall = map(statistics.median, (ours, copies, stalls))
        print("torch: %d bytes in 16 tensors over %s, checksums on: update %.2f ms (%.1f GB/s), stall %.2f ms; torch's copy %.2f "
              "ms" % (OPTIONS.bytes, WITHIN_HOST, update * 1e3, OPTIONS.bytes / update / 1e9, stall * 1e3, copy * 1e3))


if __name__ == "__main__":
    if OPTIONS.rollout:
        be_rollout(json.loads(OPTIONS.rollout))
    else:
        unittest.main(argv=sys.argv[:1], verbosity=2)
