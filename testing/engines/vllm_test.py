"""tensorhub.adapters.vllm against vLLM's own factories, worker and layerwise reload."""
import os
import types
import unittest

os.environ["VLLM_TARGET_DEVICE"] = "cpu"

from fleet import FleetTest, Fused, Trained, torch  # noqa: E402

import tensorhub  # noqa: E402
from tensorhub.adapters import vllm as adapter  # noqa: E402
from tensorhub.adapters import vllm_trainer  # noqa: E402
from vllm.config import DeviceConfig, VllmConfig  # noqa: E402
from vllm.config.weight_transfer import WeightTransferConfig  # noqa: E402
from vllm.distributed.weight_transfer.base import ModuleSource  # noqa: E402
from vllm.distributed.weight_transfer.factory import (WeightTransferEngineFactory,  # noqa: E402
                                                      WeightTransferTrainerFactory)
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading  # noqa: E402
from vllm.v1.worker.gpu_worker import Worker  # noqa: E402

adapter.register()
adapter.register()  # vLLM loads its plug-ins in every process that it makes


class FakeWorker:
    """vLLM's Worker as far as weights go: its own methods, on an object that has no GPU."""
    _check_weight_transfer_engine = Worker._check_weight_transfer_engine
    _start_weight_update = Worker._start_weight_update
    init_weight_transfer_engine = Worker.init_weight_transfer_engine
    start_weight_update = Worker.start_weight_update
    update_weights = Worker.update_weights
    finish_weight_update = Worker.finish_weight_update
    shutdown_weight_transfer_engine = Worker.shutdown_weight_transfer_engine

    def __init__(self):
        self.vllm_config = VllmConfig(device_config=DeviceConfig("cpu"),
                                      weight_transfer_config=WeightTransferConfig(backend="tensorhub"))
        self.vllm_config.model_config = types.SimpleNamespace(dtype=torch.float32, quantization=None)
        self.model, self.rank = Fused(), 0
        record_metadata_for_reloading(self.model)
        self._weight_update_active = self._weight_update_is_draft = False
        self.model_runner = types.SimpleNamespace(reset_lora_state=lambda: None)
        self.weight_transfer_engine = WeightTransferEngineFactory.create_engine(
            self.vllm_config.weight_transfer_config, self.vllm_config, torch.device("cpu"), self.model)

    def get_draft_model(self):
        return None


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
        trained, workers = Trained(), [FakeWorker(), FakeWorker()]
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
        trained, worker = Trained(), FakeWorker()
        self.trainer(trained, [worker]).send_weights()
        worker.start_weight_update()
        with self.assertRaises(tensorhub.DeadlineExceeded):
            worker.update_weights({"version": "step-9", "timeout": 0.2})
        self.assert_holds(worker.model, trained)
        self.assertEqual(worker.weight_transfer_engine._weights.version.label.split("-")[0], "1")

    def test_a_trainer_that_was_started_anew_sends_its_own_weights(self):
        first, second, worker = Trained(), Trained(), FakeWorker()
        trainer = self.trainer(first, [worker])
        trainer.send_weights()
        trainer.shutdown()
        self.trainer(second, [worker]).send_weights()
        self.assert_holds(worker.model, second)

    def test_what_cannot_be_meant_is_refused_by_vllm_itself(self):
        worker = FakeWorker()
        with self.assertRaisesRegex(ValueError, "Invalid init_info for TensorHubWeightTransferEngine.*port"):
            worker.init_weight_transfer_engine({"port": 1})
        worker.start_weight_update()
        with self.assertRaisesRegex(RuntimeError, "init_weight_transfer_engine was not called"):
            worker.update_weights({})


if __name__ == "__main__":
    unittest.main()
