"""What the tests of engines share: a server, its members, and models as small as a test needs."""
import os
import sys

LIBRARY, PROGRAMS, PACKAGE = (os.environ[name] for name in ("TENSORHUB_LIBRARY", "TENSORHUB_BIN", "TENSORHUB_PACKAGE"))
sys.path.insert(0, PACKAGE)

import tensorhub  # noqa: E402
import torch  # noqa: E402
from server_test_case import ServerTestCase  # noqa: E402


class Trained(torch.nn.Module):
    """A trainer's model: three projections, each by itself."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(4, 2, bias=False) for _ in range(3))

    def fused(self):
        return torch.cat([self.q.weight, self.k.weight, self.v.weight]).detach()

    def step(self):
        with torch.no_grad():
            self.q.weight.add_(1)


def load_stacked(param, loaded_weight, shard_id):
    """As the weight loaders of engines, which go by these names: one projection into its rows of the fused parameter."""
    param.data[2 * shard_id:2 * shard_id + 2].copy_(loaded_weight)


class Fused(torch.nn.Module):
    """An engine's model: the projections in one parameter, loaded by name."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(4, 6, bias=False)
        self.qkv.weight.weight_loader = load_stacked
        self.loads = 0

    def load_weights(self, weights):
        self.loads += 1
        seen, param = set(), self.qkv.weight  # looked up once, as engines do
        for name, tensor in weights:
            param.weight_loader(param, tensor, "qkv".index(name[0]))
            seen.add(name)
        return seen


class FleetTest(ServerTestCase):
    def setUp(self):
        self.place = {"server": self.server.address, "run": "engines", "model": self.id()}

    def join(self, group, **options):
        hub = tensorhub.join(group=group, **self.place, **options)
        self.addCleanup(hub.leave)
        return hub

    def assert_holds(self, model, trained):
        self.assertTrue(torch.equal(model.qkv.weight.detach(), trained.fused()), (model.qkv.weight, trained.fused()))
