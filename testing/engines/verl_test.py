"""tensorhub.adapters.verl by verl's registry."""
import asyncio
import unittest

from fleet import FleetTest, Trained, torch

import tensorhub
from tensorhub.adapters import verl as adapter  # registers it
from verl.checkpoint_engine import CheckpointEngineRegistry


class VerlTest(FleetTest):
    def engines(self, actors, rollouts):
        made = [CheckpointEngineRegistry.new("tensorhub", bucket_size=1 << 20, is_master=i == 0, timeout=20, **self.place)
                for i in range(actors)]
        made += [CheckpointEngineRegistry.new("tensorhub", bucket_size=1 << 20, timeout=20, **self.place)
                 for _ in range(rollouts)]
        for engine in made:
            self.addCleanup(engine.close)
        return made[:actors], made[actors:]

    def prepare(self, actors, rollouts):
        """As verl does at every step."""
        metadata = [engine.prepare() for engine in actors + rollouts]
        kind = CheckpointEngineRegistry.get("tensorhub")
        for engines, topology in zip((actors, rollouts), kind.build_topology(len(actors), len(rollouts), metadata)):
            for i, engine in enumerate(engines):
                engine.init_process_group(**{name: values[i] for name, values in topology.items()})

    @staticmethod
    async def received(engine, step):
        return {name: tensor async for name, tensor in engine.receive_weights(global_steps=step)}

    def test_rollouts_get_what_the_actors_send_at_each_step(self):
        trained = Trained()
        actors, rollouts = self.engines(2, 2)

        async def step(number):
            weights = dict(trained.named_parameters())
            sending = [actor.send_weights(iter(weights.items()), global_steps=number) for actor in actors]
            receiving = [self.received(rollout, number) for rollout in rollouts]
            return (await asyncio.gather(*sending, *receiving))[len(sending):]

        memberships = None
        for number in (1, 2):
            trained.step()
            self.prepare(actors, rollouts)
            for got in asyncio.run(step(number)):
                self.assertEqual(set(got), {"q.weight", "k.weight", "v.weight"})
                for name, parameter in trained.named_parameters():
                    self.assertTrue(torch.equal(got[name], parameter.detach()))
            for engine in actors + rollouts:
                engine.finalize()
            now = [engine._hub for engine in actors + rollouts]
            self.assertTrue(memberships is None or memberships == now, "the membership stays")
            memberships = now

    def test_a_rollout_that_joins_late_gets_the_step_from_what_stays_published(self):
        trained = Trained()
        actors, _ = self.engines(1, 0)
        self.prepare(actors, [])
        asyncio.run(actors[0].send_weights(trained.named_parameters(), global_steps=7))
        _, late = self.engines(0, 1)
        self.prepare([], late)
        got = asyncio.run(self.received(late[0], 7))
        self.assertTrue(torch.equal(got["q.weight"], trained.q.weight.detach()))

    def test_a_step_that_nobody_sends_ends_the_wait(self):
        _, rollouts = self.engines(0, 1)
        rollouts[0].timeout = 0.2
        self.prepare([], rollouts)
        with self.assertRaises(tensorhub.DeadlineExceeded):
            asyncio.run(self.received(rollouts[0], 3))
        with self.assertRaisesRegex(ValueError, "by their step"):
            asyncio.run(self.received(rollouts[0], None))


if __name__ == "__main__":
    unittest.main()
