"""What vLLM's weight transfer and its loader share: a worker's membership, with the model's own buffers (vLLM 0.33)."""
from __future__ import annotations

import dataclasses
import time
import uuid
import weakref
from typing import Any, Iterable, Optional, Tuple

import torch
import vllm
from vllm.distributed import parallel_state
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo
from vllm.model_executor.model_loader import reload

from .. import _hub
from .._arguments import given_or_environment, seconds_left
from ..engines import EngineWeights, Loaded, flat_buffers


@dataclasses.dataclass
class TensorHubInitInfo(WeightTransferInitInfo):
    """Where the engine joins, as tensorhub.join has it. `source_ranks` ranks of `source_group` hold the trainer's tensors in parts."""
    server: Optional[str] = None
    run: Optional[str] = None
    model: Optional[str] = None
    group: str = "vllm"  # the beginning of each worker's own group
    source_group: Optional[str] = None
    source_ranks: int = 1

    def place(self) -> tuple:
        return tuple(given_or_environment(name, getattr(self, name)) for name in ("server", "run", "model"))


def form_of(vllm_config: Any) -> str:
    """Names what decides a worker's buffers: workers of one form have the same, byte for byte alike once loaded."""
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    form = "vllm-%s/tp%d-pp%d/%d/%s-%s" % (vllm.__version__, parallel.tensor_parallel_size, parallel.pipeline_parallel_size,
                                           parallel.rank, str(model.dtype).split(".")[-1], model.quantization or "none")
    if parallel.data_parallel_size > 1 and model.is_moe:  # whose experts lie spread over these ranks too
        form += "/dp%d/%d" % (parallel.data_parallel_size, parallel.data_parallel_rank)
    return form


class Member:
    """A worker as a group of its own. All is received and checked before anything is loaded; after a failure it serves on. Where
    `is_new`, the model has no weights yet, and the first version must have all of them."""

    def __init__(self, info: TensorHubInitInfo, vllm_config: Any, model: torch.nn.Module, device: torch.device, is_new: bool = False):
        self.place, self._device, self._config = info.place(), device, vllm_config.model_config
        self._model, self._is_new = weakref.ref(model), is_new  # `started` would keep the model for ever
        self.last: Optional[Loaded] = None  # what the last update came to
        buffers = flat_buffers(model.state_dict(keep_vars=True))
        group = "%s-%s-%d" % (info.group, uuid.uuid4().hex[:8], vllm_config.parallel_config.rank)
        self._hub = _hub.join(info.server, run=info.run, model=info.model, group=group)
        self._weights = EngineWeights(self._hub, buffers, form_of(vllm_config), source_group=info.source_group,
                                      source_ranks=info.source_ranks)

    def take_from(self, info: TensorHubInitInfo) -> None:
        self._weights.source.update(group=info.source_group, ranks=info.source_ranks)

    def update(self, version: str, timeout: float) -> None:
        """A call of all ranks of the engine."""
        end = time.monotonic() + timeout
        self.last = self._weights.update(self._agreed(version, timeout), load=self._load, timeout=seconds_left(end))
        self._is_new = False

    def _agreed(self, version: str, timeout: float) -> str:
        """The version as the engine's first rank finds it: each rank by itself could find another latest one."""
        if not parallel_state.model_parallel_is_initialized():
            return version
        tensor, pipeline, found = parallel_state.get_tp_group(), parallel_state.get_pp_group(), None
        if tensor.rank_in_group == pipeline.rank_in_group == 0:
            try:
                found = self._hub.wait_for(version, timeout).selector
            except Exception as error:  # it is every rank's
                found = error
        found = tensor.broadcast_object(pipeline.broadcast_object(found))
        if isinstance(found, Exception):
            raise found
        return found

    def _load(self, tensors: Iterable[Tuple[str, torch.Tensor]]) -> None:
        model = self._model()
        names = {name for name, _ in model.named_parameters()}
        reload.initialize_layerwise_reload(model)
        try:
            loaded = model.load_weights((name, tensor.to(self._device)) for name, tensor in tensors)
        finally:  # after a failure too: the next reload would go on with what this one has begun
            reload.finalize_layerwise_reload(model, self._config)
        if self._is_new and loaded is not None and self._config.quantization is None and names - loaded:
            raise ValueError("the version has nothing for %r and %d more of the engine's parameters: start the engine from a "
                             "checkpoint, and let its weight transfer update it" % (min(names - loaded), len(names - loaded) - 1))

    def leave(self) -> None:
        self._hub.leave()


# By model: those that a loader has made, until the weight transfer of the same worker takes them over.
started: "weakref.WeakKeyDictionary[torch.nn.Module, Member]" = weakref.WeakKeyDictionary()
