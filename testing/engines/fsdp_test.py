"""torch's own shards (FSDP2, alone and over tensor parallelism): each rank publishes what it has, and an engine takes the whole."""
import contextlib
import unittest

from fleet import FleetTest, tensorhub, torch
from ranks import ANSWER_WITHIN, Ranks, copies
from tensorhub import engines
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Trained(torch.nn.Module):
    """Layers whose rows do not divide evenly over the ranks; of the smallest some ranks have none."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(5, 14)
        self.down = torch.nn.Linear(14, 5)
        self.norm = torch.nn.LayerNorm(5)
        self.head = torch.nn.Linear(5, 1, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.down(torch.relu(self.up(x)))))

    def loss(self):
        return self(torch.randn(4, 5)).square().sum()


def shard_fully(model, ranks):
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))


def shard_hybrid(model, ranks):
    fully_shard(model, mesh=init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard")))


def shard_over_tensor_parallel(model, ranks):
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])


@contextlib.contextmanager
def trainer(rank, ranks, place, shard, make=Trained):
    """A rank of a trainer. Each request is the number of a step: it trains once, and publishes under that number. Rank 0 answers
    with the whole tensors, as torch gathers them."""
    torch.manual_seed(0)
    model = make()
    shard(model, ranks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tensorhub.join(group="trainer", rank=rank, ranks=ranks, **place) as hub:
        weights = hub.register(model)

        def step(number):
            if weights.version is not None:
                weights.unpublish()
            torch.manual_seed(number)
            model.loss().backward()
            optimizer.step()
            optimizer.zero_grad()
            weights.publish(number)
            weights.await_published()
            wholes = copies((name, value.full_tensor()) for name, value in model.state_dict().items())
            return wholes if rank == 0 else None

        yield step


class FsdpTest(FleetTest):
    def check(self, shard, ranks):
        world = Ranks(trainer, ranks, self.place, shard)
        self.addCleanup(world.stop)
        engine = Trained()
        weights = engines.EngineWeights(self.join("engine"), engines.flat_buffers(engine.state_dict()), form="engine",
                                        source_group="trainer", source_ranks=ranks)
        previous = None
        for number in (1, 2):
            wholes, *_ = world.ask(number)
            loaded = weights.update(number, load=lambda tensors: engine.load_state_dict(dict(tensors)), timeout=ANSWER_WITHIN)
            self.assertTrue(loaded.by_name)
            self.assertEqual(set(wholes), set(engine.state_dict()))
            for name, value in engine.state_dict().items():
                self.assertTrue(torch.equal(value, wholes[name]), (name, value, wholes[name]))
            self.assertFalse(previous is not None and torch.equal(previous, wholes["up.weight"]), "nothing was learned")
            previous = wholes["up.weight"]

    def test_an_engine_gets_the_whole_of_fsdp_shards(self):
        self.check(shard_fully, 3)

    def test_an_engine_gets_the_whole_of_hybrid_shards(self):
        self.check(shard_hybrid, 4)

    def test_an_engine_gets_the_whole_of_fsdp_over_tensor_parallel(self):
        self.check(shard_over_tensor_parallel, 4)


if __name__ == "__main__":
    unittest.main()
