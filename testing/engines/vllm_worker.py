"""vLLM's Worker as far as weights go, without a GPU."""
import os
import types

os.environ["VLLM_TARGET_DEVICE"] = "cpu"  # read when vLLM is imported

from fleet import Fused, torch  # noqa: E402
from tensorhub.adapters import vllm as adapter  # noqa: E402
from vllm.config import DeviceConfig, VllmConfig  # noqa: E402
from vllm.config.weight_transfer import WeightTransferConfig  # noqa: E402
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory  # noqa: E402
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading  # noqa: E402
from vllm.v1.worker.gpu_worker import Worker  # noqa: E402

adapter.register()
adapter.register()  # once more is harmless: vLLM may load its plug-ins again

WEIGHT_TRANSFER = WeightTransferConfig(backend="tensorhub")


class FakeWorker:
    """The Worker's own methods, on an object that has no GPU. `vllm_config` has WEIGHT_TRANSFER."""
    _check_weight_transfer_engine = Worker._check_weight_transfer_engine
    _start_weight_update = Worker._start_weight_update
    init_weight_transfer_engine = Worker.init_weight_transfer_engine
    start_weight_update = Worker.start_weight_update
    update_weights = Worker.update_weights
    finish_weight_update = Worker.finish_weight_update
    shutdown_weight_transfer_engine = Worker.shutdown_weight_transfer_engine

    def __init__(self, vllm_config, model):
        self.vllm_config, self.model, self.rank = vllm_config, model, vllm_config.parallel_config.rank
        self._weight_update_active = self._weight_update_is_draft = False
        self.model_runner = types.SimpleNamespace(reset_lora_state=lambda: None)
        self.weight_transfer_engine = WeightTransferEngineFactory.create_engine(
            vllm_config.weight_transfer_config, vllm_config, torch.device("cpu"), model)

    def get_draft_model(self):
        return None


def worker_of_fused():
    """One that serves the model `fleet.Fused`."""
    config = VllmConfig(device_config=DeviceConfig("cpu"), weight_transfer_config=WEIGHT_TRANSFER)
    config.model_config = types.SimpleNamespace(dtype=torch.float32, quantization=None)
    model = Fused()
    record_metadata_for_reloading(model)  # as vLLM does for each model that it makes
    return FakeWorker(config, model)
