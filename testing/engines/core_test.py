"""tensorhub.engines with torch: engines of one form, a trainer of several ranks, and what goes wrong."""
import contextlib
import threading
import types
import unittest
from concurrent import futures
from unittest import mock

from fleet import FleetTest, Fused, Trained, torch

import numpy
import tensorhub
from tensorhub import engines


class CoreTest(FleetTest):
    def join(self, group, **options):
        # All clients of a process share one data plane. A tensor of 12 MB is under way for one and a half seconds.
        return super().join(group, uplink_bytes_per_second="8MB", transports=["tcp"], **options)


class EngineWeightsTest(CoreTest):
    def engine(self, group, **options):
        model = Fused()
        weights = engines.EngineWeights(self.join(group), dict(model.named_parameters()), form="engine/1", **options)
        return model, weights

    def publish(self, trained, version):
        if not hasattr(self, "trainer"):
            self.trainer = self.join("trainer").register(trained)
        elif self.trainer.version is not None:
            self.trainer.unpublish()
            trained.step()
        self.trainer.publish(version)
        self.trainer.await_published()

    def test_the_second_engine_takes_the_first_ones_buffers_and_the_third_either(self):
        trained = Trained()
        fleet = [self.engine("engine-%d" % i) for i in range(3)]
        for version in (1, 2):
            self.publish(trained, version)
            loaded = [weights.update("latest", load=model.load_weights) for model, weights in fleet]
            self.assertEqual([each.by_name for each in loaded], [True, False, False])
            self.assertEqual(loaded[0].sources, ["trainer/0"])
            self.assertEqual(loaded[1].sources, ["engine-0/0"])
            self.assertLessEqual(set(loaded[2].sources), {"engine-0/0", "engine-1/0"})
            for model, weights in fleet:
                self.assert_holds(model, trained)
                self.assertEqual(weights.version.label, str(version))
        self.assertEqual([model.loads for model, _ in fleet], [2, 0, 0])

    def test_of_engines_told_at_the_same_moment_one_loads_by_name(self):
        trained = Trained()
        fleet = [self.engine("engine-%d" % i) for i in range(4)]
        for version in (1, 2, 3):
            self.publish(trained, version)
            start = threading.Barrier(len(fleet))

            def update(engine):
                model, weights = engine
                start.wait()
                return weights.update(version, load=model.load_weights)
            with futures.ThreadPoolExecutor(len(fleet)) as pool:
                loaded = list(pool.map(update, fleet))
            self.assertEqual(sorted(each.by_name for each in loaded), [False, False, False, True])
            for model, _ in fleet:
                self.assert_holds(model, trained)
        self.assertEqual(sum(model.loads for model, _ in fleet), 3)

    def test_where_the_chosen_engine_fails_another_one_loads(self):
        trained = Trained()
        self.publish(trained, 1)
        (first, chosen), (second, waits) = self.engine("chosen"), self.engine("waits")
        is_chosen, told = threading.Event(), threading.Event()

        def fail(tensors):
            is_chosen.set()
            self.assertTrue(told.wait(60))
            raise RuntimeError("no room")

        def update():
            self.assertTrue(is_chosen.wait(60))
            told.set()
            return waits.update(1, load=second.load_weights, timeout=60)  # the claim lasts for 300
        with futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(update)
            with self.assertRaisesRegex(RuntimeError, "no room"):
                chosen.update(1, load=fail)
            self.assertTrue(waiting.result().by_name)
        self.assert_holds(second, trained)
        self.assertFalse(chosen.update(1, load=first.load_weights).by_name)
        self.assert_holds(first, trained)

    def test_an_engine_whose_sources_go_in_mid_update_loads_by_name_in_the_same_pause(self):
        trained = Trained()
        self.publish(trained, 1)
        padding = lambda: torch.zeros(12000000, dtype=torch.uint8)  # a second and a half
        gone = self.join("gone")
        model = Fused()
        leaving = engines.EngineWeights(gone, {**dict(model.named_parameters()), "z.padding": padding()}, form="engine/1")
        leaving.update(1, load=model.load_weights)
        torn = Fused()
        weights = engines.EngineWeights(self.join("torn"), {**dict(torn.named_parameters()), "z.padding": padding()},
                                        form="engine/1")
        pauses = []

        @contextlib.contextmanager
        def pause():
            pauses.append("paused")
            yield
            pauses.append("resumed")

        def leave():
            while leaving._weights.info()["bytes_sent"] == 0:
                threading.Event().wait(0.005)
            gone.leave()
        with futures.ThreadPoolExecutor(1) as pool:
            left = pool.submit(leave)
            loaded = weights.update(1, load=torn.load_weights, pause=pause)
            left.result()
        self.assertTrue(loaded.by_name)
        self.assertEqual(pauses, ["paused", "resumed"])
        self.assertFalse(weights.undefined)
        self.assert_holds(torn, trained)

    def test_where_no_engine_gives_what_it_offers_the_version_is_loaded_by_name(self):
        trained = Trained()
        self.publish(trained, 1)
        first, offering = self.engine("first")
        offering.update(1, load=first.load_weights)
        second, weights = self.engine("second")
        with mock.patch.object(tensorhub.Weights, "update", side_effect=tensorhub.Unavailable("it does not answer")):
            self.assertTrue(weights.update(1, load=second.load_weights).by_name)
        self.assert_holds(second, trained)

    def test_an_update_that_runs_out_of_time_ends_and_says_that_the_buffers_are_torn(self):
        trained = Trained()
        self.publish(trained, 1)
        padding = {"z.padding": torch.zeros(12000000, dtype=torch.uint8)}  # a second and a half
        model = Fused()
        source = engines.EngineWeights(self.join("source"), {**dict(model.named_parameters()), **padding}, form="engine/1")
        source.update(1, load=model.load_weights)
        late = Fused()
        padding = {"z.padding": torch.zeros(12000000, dtype=torch.uint8)}
        weights = engines.EngineWeights(self.join("late"), {**dict(late.named_parameters()), **padding}, form="engine/1")
        with self.assertRaises(tensorhub.DeadlineExceeded):
            weights.update(1, load=late.load_weights, timeout=0.5)
        self.assertTrue(weights.undefined)
        self.assertEqual(late.loads, 0)
        self.assertFalse(weights.update(1, load=late.load_weights).by_name)
        self.assertFalse(weights.undefined)
        self.assert_holds(late, trained)

    def test_what_is_there_is_not_loaded_again(self):
        self.publish(Trained(), 1)
        model, weights = self.engine("engine")
        for _ in range(2):
            weights.update(1, load=model.load_weights)
        self.assertEqual(model.loads, 1)

    def test_an_engine_serves_on_where_a_version_cannot_be_had(self):
        trained = Trained()
        self.publish(trained, 1)
        model, weights = self.engine("engine")
        weights.update(1, load=model.load_weights)
        with self.assertRaises(tensorhub.DeadlineExceeded):
            weights.update("step-9", load=model.load_weights, timeout=0.2)
        self.assertEqual(weights.version.label, "1")
        self.assert_holds(model, trained)
        other, others = self.engine("other")
        self.assertFalse(others.update(1, load=other.load_weights).by_name)

    def test_parts_that_are_not_the_whole_are_refused_before_anything_is_loaded(self):
        whole = torch.arange(24.0).reshape(6, 4)
        ranks = [self.join("trainer", rank=rank, ranks=2) for rank in range(2)]
        registered = [hub.register({"q.weight": Part(whole, rank, 2)}) for rank, hub in enumerate(ranks)]
        for weights in registered:
            weights.publish(1)
        for weights in registered:
            weights.await_published()
        model, weights = self.engine("engine", source_group="trainer", source_ranks=1)
        with self.assertRaisesRegex(ValueError, "q.weight.*24 elements.*have 12"):
            weights.update(1, load=model.load_weights)
        self.assertEqual((model.loads, weights.version), (0, None))
        reader = self.join("reader")
        got, received, sources = engines.receive_whole(reader, registered[0].version, ranks=2, group="trainer")
        self.assertTrue(torch.equal(got["q.weight"], whole))
        self.assertEqual((received, sources), (24 * 4, ["trainer/0", "trainer/1"]))

    def test_a_loader_that_fails_offers_nothing(self):
        self.publish(Trained(), 1)
        model, weights = self.engine("engine")

        def fail(tensors):
            raise RuntimeError("no room")

        with self.assertRaisesRegex(RuntimeError, "no room"):
            weights.update(1, load=fail)
        self.assertIsNone(weights.version)
        self.assertTrue(weights.undefined)
        self.assertTrue(weights.update(1, load=model.load_weights).by_name)
        self.assertFalse(weights.undefined)

    def test_the_buffers_are_written_within_the_pause_alone(self):
        self.publish(Trained(), 1)
        model, weights = self.engine("engine")
        paused = []

        @contextlib.contextmanager
        def pause():
            paused.append(True)
            yield
            paused.append(False)

        def load(tensors):
            self.assertTrue(paused[-1])
            model.load_weights(tensors)

        weights.update(1, load=load, pause=pause)
        self.assertFalse(paused[-1])


class WholeTest(unittest.TestCase):
    def test_a_rank_without_rows_is_passed_over(self):
        def piece(begin, rows):
            return types.SimpleNamespace(name="w", dtype="F32", global_shape=(6, 2), begin=(begin, 0), shape=(rows, 2))
        whole = engines._Whole(piece(0, 3))
        for begin, rows in ((0, 3), (3, 0), (3, 3), (6, 0)):
            whole.add(piece(begin, rows), torch.full((rows, 2), float(begin)))
        whole.check()
        self.assertTrue(torch.equal(whole.tensor[:, 0], torch.tensor([0., 0, 0, 3, 3, 3])))
        with self.assertRaisesRegex(ValueError, "begin at .3, 0. and differ"):
            whole.add(piece(3, 2), torch.zeros(2, 2))


class PublishedCopiesTest(CoreTest):
    def test_copies_have_no_history(self):
        copies = engines.PublishedCopies(self.join("trainer"))
        for _ in range(2):
            copies.publish_next([("a", torch.ones(3, requires_grad=True))])
        self.assertFalse(copies._copies["a"].requires_grad)

    def test_after_a_publish_that_failed_comes_the_next(self):
        copies = engines.PublishedCopies(self.join("trainer"))
        copies.publish(1, [("a", torch.zeros(3)), ("b", torch.zeros(2))])

        def broken():
            yield "a", torch.ones(3)
            raise RuntimeError("a gather failed")
        with self.assertRaisesRegex(RuntimeError, "a gather failed"):
            copies.publish(2, broken())
        with self.assertRaisesRegex(ValueError, "'b' was sent first, and not now"):
            copies.publish(2, [("a", torch.ones(3))])
        copies.publish(2, [("a", torch.ones(3)), ("b", torch.ones(2))])
        got = dict(self.join("reader").receive(2, framework="torch"))
        self.assertTrue(torch.equal(got["a"], torch.ones(3)))
        self.assertTrue(torch.equal(got["b"], torch.ones(2)))


class Shard:
    """As torch's placement of this name."""
    dim = 0


class Part:
    """One rank's rows of a whole, as a DTensor over a mesh of `ranks` tells of them."""

    def __init__(self, whole, rank, ranks):
        rows = -(-whole.shape[0] // ranks)
        self.local = whole[rows * rank:rows * (rank + 1)].clone()
        self.shape, self.placements = whole.shape, (Shard(),)
        self.device_mesh = self
        self._rank, self._ranks = rank, ranks

    def get_coordinate(self):
        return (self._rank,)

    def size(self, dimension):
        return self._ranks

    def to_local(self):
        return self.local

    def data_ptr(self):
        return self.local.data_ptr()


class NumpyTest(CoreTest):
    def test_what_has_no_memory_to_write_is_refused(self):
        hub = self.join("rollout")
        with self.assertRaisesRegex(ValueError, "'a' is read-only memory"):
            hub.register({"a": numpy.frombuffer(bytes(12), numpy.float32)})
        for scalar in (numpy.float32(5), numpy.int64(3)):
            with self.assertRaisesRegex(TypeError, "'s' is a scalar of numpy"):
                hub.register({"s": scalar})
        hub.register({"s": numpy.array(5)})


class CastsTest(CoreTest):
    def test_weights_kept_in_one_type_are_published_in_another(self):
        trained, kept = Trained(), Trained()
        with torch.no_grad():
            trained.q.weight.fill_(1 / 3)
        trainer = self.join("trainer").register(trained, dtype=torch.bfloat16)
        rollout = self.join("rollout").register(kept, dtype="BF16")
        engine = Trained().to(torch.bfloat16)
        plain = self.join("engine").register(engine)
        for version in (1, 2):
            if version == 2:
                trainer.unpublish()
                trained.step()
            trainer.publish(version)
            trainer.await_published()
            rounded = trained.fused().to(torch.bfloat16)
            self.assertEqual(rollout.update(version).bytes_received, rounded.nbytes)
            self.assertTrue(torch.equal(kept.fused(), rounded.to(torch.float32)))
            plain.update(version)
            self.assertTrue(torch.equal(engine.fused(), rounded))
        self.assertFalse(torch.equal(kept.fused(), trained.fused()), "a third is no number of bfloat16")


class BuffersTest(unittest.TestCase):
    def test_a_transposed_tensor_is_its_memory(self):
        tensor = torch.arange(6.0).reshape(2, 3)
        flat = engines.flat_buffers({"t": tensor.t(), "c": tensor})
        self.assertEqual(flat["t"].data_ptr(), tensor.data_ptr())
        self.assertTrue(torch.equal(flat["t"], torch.arange(6.0)))
        with self.assertRaisesRegex(ValueError, "'gaps' has gaps"):
            engines.flat_buffers({"gaps": tensor[:, :2]})


if __name__ == "__main__":
    unittest.main()
