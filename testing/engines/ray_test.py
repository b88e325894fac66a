"""Ray: a trainer and rollouts as actors. A rollout is killed, and another takes its place."""
import os
import pathlib
import unittest

import fleet
import ray
import tensorhub
import torch

ANSWER_WITHIN = 120  # seconds; the first call of an actor waits for its process


@ray.remote(num_cpus=0)
class Trainer:
    """Holds the model that is trained, and publishes each step of it."""

    def __init__(self, place):
        self.model = fleet.Trained()
        self.hub = tensorhub.join(group="trainer", **place)
        self.weights = self.hub.register(self.model)

    def publish(self, step):
        if self.weights.version is not None:
            self.weights.unpublish()
            self.model.step()
        self.weights.publish(step)
        self.weights.await_published()
        return self.model.fused()


@ray.remote(num_cpus=0)
class Rollout:
    """Holds a copy of the model, as a group of its own."""

    def __init__(self, group, place):
        self.model = fleet.Trained()
        self.hub = tensorhub.join(group=group, **place)
        self.weights = self.hub.register(self.model)

    def update(self):
        result = self.weights.update("latest", timeout=30)
        return result.version.label, self.model.fused()


class RayTest(fleet.ServerTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        here = str(pathlib.Path(__file__).resolve().parent)
        os.environ["PYTHONPATH"] = os.pathsep.join([here, fleet.PACKAGE, os.environ["PYTHONPATH"]])  # of the actors' processes
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
        cls.addClassCleanup(ray.shutdown)

    def test_a_killed_rollout_is_replaced_and_the_others_go_on(self):
        place = {"server": self.server.address, "run": "ray", "model": "m"}
        trainer = Trainer.remote(place)
        rollouts = [Rollout.remote("rollout-%d" % i, place) for i in range(2)]

        def all_hold(step):
            trained = ray.get(trainer.publish.remote(step), timeout=ANSWER_WITHIN)
            for label, held in ray.get([each.update.remote() for each in rollouts], timeout=ANSWER_WITHIN):
                self.assertEqual(label, str(step))
                self.assertTrue(torch.equal(held, trained))

        all_hold(1)
        ray.kill(rollouts[1])
        rollouts[1] = Rollout.remote("rollout-1", place)
        all_hold(2)
        all_hold(3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
