"""tensorhub.adapters.vllm against vLLM's own factories, worker and layerwise reload."""
import gc
import types
import unittest
import weakref
from unittest import mock

from fleet import FleetTest, Trained, torch
from vllm_worker import worker_of_fused  # before vLLM: it sets the device

import tensorhub
from tensorhub.adapters import vllm_member, vllm_trainer
from vllm.config import LoadConfig
from vllm.distributed.weight_transfer.base import ModuleSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.model_executor.model_loader import get_model_loader


class Client:
    """The trainer's way to its engines: calls in this process in the place of HTTP."""

    def __init__(self, workers):
        self.workers = workers

    def init_weight_transfer_engine(self, init_info):
        for worker in self.workers:
            worker.init_weight_transfer_engine(init_info)

    def start_weight_update(self):
        for worker in self.workers:
            worker.start_weight_update()

    def update_weights(self, update_info):
        for worker in self.workers:
            worker.update_weights(update_info)

    def finish_weight_update(self, weight_version=None):
        for worker in self.workers:
            worker.finish_weight_update()


class VllmTest(FleetTest):
    def trainer(self, trained, workers):
        info = vllm_trainer.TensorHubTrainerInitInfo(rank=0, **self.place)
        trainer = WeightTransferTrainerFactory.trainer_init(info, client=Client(workers), source=ModuleSource(trained))
        self.addCleanup(trainer.shutdown)
        for worker in workers:
            self.addCleanup(worker.shutdown_weight_transfer_engine)
        return trainer

    def test_the_second_engine_takes_no_byte_by_name(self):
        trained, workers = Trained(), [worker_of_fused(), worker_of_fused()]
        trainer = self.trainer(trained, workers)
        for step in (1, 2, 3):
            trained.step()
            trainer.send_weights()
            first, second = (worker.weight_transfer_engine.last for worker in workers)
            self.assertEqual((first.by_name, first.sources), (True, ["trainer/0"]))
            self.assertFalse(second.by_name)
            self.assertTrue(all(source.startswith("vllm-") for source in second.sources), second.sources)
            for worker in workers:
                self.assert_holds(worker.model, trained)
        self.assertEqual([worker.model.loads for worker in workers], [3, 0])

    def test_a_version_that_cannot_be_had_leaves_the_engine_as_it_was(self):
        trained, worker = Trained(), worker_of_fused()
        self.trainer(trained, [worker]).send_weights()
        worker.start_weight_update()
        with self.assertRaises(tensorhub.DeadlineExceeded):
            worker.update_weights({"version": "step-9", "timeout": 0.2})
        self.assert_holds(worker.model, trained)
        self.assertEqual(worker.weight_transfer_engine.last.version.label.split("-")[0], "1")

    def test_a_trainer_that_was_started_anew_sends_its_own_weights(self):
        first, second, worker = Trained(), Trained(), worker_of_fused()
        trainer = self.trainer(first, [worker])
        trainer.send_weights()
        trainer.shutdown()
        self.trainer(second, [worker]).send_weights()
        self.assert_holds(worker.model, second)

    def started(self, trained, worker):
        """What a loader leaves behind for the weight transfer of the same worker."""
        weights = self.join("trainer").register(trained)
        weights.publish(1)
        weights.await_published()
        member = vllm_member.Member(vllm_member.TensorHubInitInfo(**self.place), worker.vllm_config, worker.model, torch.device("cpu"))
        member.update("latest", 30)
        vllm_member.started[worker.model] = member
        self.addCleanup(worker.shutdown_weight_transfer_engine)
        return weights, member

    def test_a_load_that_failed_half_way_leaves_nothing_to_the_next(self):
        trained, worker = Trained(), worker_of_fused()
        trainer = self.trainer(trained, [worker])
        load = worker.model.load_weights
        with mock.patch.object(worker.model, "load_weights", lambda tensors: load([next(iter(tensors))]) and 1 / 0):
            with self.assertRaises(ZeroDivisionError):
                trainer.send_weights()
        self.assertTrue(worker.weight_transfer_engine._member._weights.undefined)
        with torch.no_grad():
            trained.v.weight.add_(1)  # what comes last
        trainer.send_weights()
        self.assert_holds(worker.model, trained)
        self.assertFalse(worker.weight_transfer_engine._member._weights.undefined)

    def test_what_the_loader_has_begun_goes_on(self):
        trained, worker = Trained(), worker_of_fused()
        weights, member = self.started(trained, worker)
        worker.init_weight_transfer_engine({**self.place, "source_group": "trainer"})
        self.assertIs(worker.weight_transfer_engine.last, member.last)
        weights.unpublish(drop_retained=True)
        trained.step()
        weights.publish(2)
        worker.start_weight_update()
        worker.update_weights({"version": "2"})
        worker.finish_weight_update()
        self.assert_holds(worker.model, trained)
        self.assertIs(worker.weight_transfer_engine.last, member.last)

    def test_what_the_loader_has_begun_elsewhere_ends(self):
        worker = worker_of_fused()
        _, member = self.started(Trained(), worker)
        worker.init_weight_transfer_engine({**self.place, "model": "another"})
        self.assertIsNone(worker.weight_transfer_engine.last)
        with self.assertRaises(tensorhub.FailedPrecondition):
            member.update("latest", 1)

    def test_a_model_that_is_dropped_takes_its_membership_with_it(self):
        worker = worker_of_fused()
        self.started(Trained(), worker)
        model = weakref.ref(worker.model)
        worker.model = worker.weight_transfer_engine = None
        gc.collect()
        self.assertIsNone(model())
        self.assertEqual(len(vllm_member.started), 0)

    def test_the_loader_refuses_what_it_does_not_know(self):
        with self.assertRaisesRegex(ValueError, "no 'sever' in model_loader_extra_config; it has .*server.*version"):
            get_model_loader(LoadConfig(load_format="tensorhub", model_loader_extra_config={"sever": "a:1"}))
        loader = get_model_loader(LoadConfig(load_format="tensorhub", model_loader_extra_config={"server": "a:1"}))
        config = worker_of_fused().vllm_config
        config.model_config.runner_type = "generate"
        for model_config, prefix in ((object(), ""), (config.model_config, "draft_model")):
            with self.assertRaisesRegex(ValueError, "draft model"):
                loader.load_model(config, model_config, prefix)
        config.cache_config.cache_dtype = "fp8"
        with self.assertRaisesRegex(ValueError, "KV cache in fp8"):
            loader.load_model(config, config.model_config)

    def test_a_new_model_needs_all_of_its_weights(self):
        worker = worker_of_fused()
        weights = self.join("trainer").register(Trained())
        weights.publish(1)
        weights.await_published()
        member = vllm_member.Member(vllm_member.TensorHubInitInfo(**self.place), worker.vllm_config, worker.model, torch.device("cpu"),
                                    is_new=True)
        self.addCleanup(member.leave)
        load = worker.model.load_weights
        with mock.patch.object(worker.model, "load_weights", lambda tensors: load(tensors) and set()):
            with self.assertRaisesRegex(ValueError, "nothing for 'qkv.weight' and 0 more"):
                member.update("latest", 30)
        with mock.patch.object(worker.model, "load_weights", lambda tensors: load(tensors) and {"qkv.weight"}):
            member.update("latest", 30)

    def test_experts_that_lie_spread_over_data_parallel_ranks_are_of_forms_of_their_own(self):
        config = worker_of_fused().vllm_config
        for is_moe in (False, True):
            config.model_config.is_moe = is_moe
            forms = set()
            for rank in range(2):
                config.parallel_config = types.SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1, rank=0,
                                                               data_parallel_size=2, data_parallel_rank=rank)
                forms.add(vllm_member.form_of(config))
            self.assertEqual(len(forms), 2 if is_moe else 1)

    def test_what_cannot_be_meant_is_refused_by_vllm_itself(self):
        worker = worker_of_fused()
        with self.assertRaisesRegex(ValueError, "Invalid init_info for TensorHubWeightTransferEngine.*port"):
            worker.init_weight_transfer_engine({"port": 1})
        worker.start_weight_update()
        with self.assertRaisesRegex(RuntimeError, "init_weight_transfer_engine was not called"):
            worker.update_weights({})


if __name__ == "__main__":
    unittest.main()
