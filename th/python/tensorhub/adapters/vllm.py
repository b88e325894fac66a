"""vLLM takes weights over TensorHub: the engine's side of its weight transfer, under the name "tensorhub" (vLLM 0.33).

The wheel registers it, by vLLM's entry point for plug-ins:

    LLM(model, weight_transfer_config=WeightTransferConfig(backend="tensorhub"))
"""
from __future__ import annotations

import dataclasses
import uuid
from typing import Any, Iterable, Optional, Tuple

import torch
import vllm
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
from vllm.model_executor.model_loader import reload

from .. import _hub
from ..engines import EngineWeights, Loaded, flat_buffers


@dataclasses.dataclass
class TensorHubInitInfo(WeightTransferInitInfo):
    """Where the engine joins. `source_ranks` ranks of `source_group` hold the trainer's tensors in parts."""
    server: str
    run: str
    model: str
    group: str = "vllm"  # the beginning of each worker's own group
    source_group: Optional[str] = None
    source_ranks: int = 1


@dataclasses.dataclass
class TensorHubUpdateInfo(WeightTransferUpdateInfo):
    version: str = "latest"
    timeout: float = 600


def form_of(vllm_config: Any) -> str:
    """Names what decides a worker's buffers: workers of one form have the same, byte for byte alike once loaded."""
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    return "vllm-%s/tp%d-pp%d/%d/%s-%s" % (vllm.__version__, parallel.tensor_parallel_size, parallel.pipeline_parallel_size,
                                           parallel.rank, str(model.dtype).split(".")[-1], model.quantization or "none")


class TensorHubWeightTransferEngine(WeightTransferEngine[TensorHubInitInfo, TensorHubUpdateInfo]):
    """One worker: a group of its own. All is received and checked before anything is loaded; after a failure it serves on."""
    init_info_cls, update_info_cls = TensorHubInitInfo, TensorHubUpdateInfo
    supports_draft_weight_update = False
    _hub: Optional[_hub.Hub] = None
    last: Optional[Loaded] = None  # what the last update came to

    def init_transfer_engine(self, init_info: TensorHubInitInfo) -> None:
        self.shutdown()
        group = "%s-%s-%d" % (init_info.group, uuid.uuid4().hex[:8], self.parallel_config.rank)
        self._hub = _hub.join(init_info.server, run=init_info.run, model=init_info.model, group=group)
        self._weights = EngineWeights(self._hub, flat_buffers(self.model.state_dict(keep_vars=True)), form_of(self.vllm_config),
                                      source_group=init_info.source_group, source_ranks=init_info.source_ranks)

    def start_weight_update(self) -> None:
        """Nothing: a reload begins once all has been received."""

    def receive_weights(self, update_info: TensorHubUpdateInfo) -> None:
        if self._hub is None:
            raise RuntimeError("TensorHub: init_weight_transfer_engine was not called")
        self.last = self._weights.update(update_info.version, load=self._load, timeout=update_info.timeout)

    def update_weights(self, update_info: dict) -> None:
        self.receive_weights(self.parse_update_info(update_info))  # the base class waits for an accelerator, also without one

    def _load(self, tensors: Iterable[Tuple[str, torch.Tensor]]) -> None:
        reload.initialize_layerwise_reload(self.model)
        self.model.load_weights((name, tensor.to(self.device)) for name, tensor in tensors)
        reload.finalize_layerwise_reload(self.model, self.model_config)

    def finish_weight_update(self) -> None:
        """Nothing: an update is whole, or has failed."""

    def shutdown(self) -> None:
        if self._hub is not None:
            self._hub.leave()
            self._hub = None


def register() -> None:
    """vLLM's plug-in; vLLM may call it more than once in a process."""
    here = __name__.rpartition(".")[0]
    for factory, module, name in ((WeightTransferEngineFactory, "vllm", "TensorHubWeightTransferEngine"),
                                  (WeightTransferTrainerFactory, "vllm_trainer", "TensorHubTrainerEngine")):
        try:
            factory.register_engine("tensorhub", "%s.%s" % (here, module), name)
        except ValueError:  # it is registered
            pass
