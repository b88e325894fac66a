"""vLLM takes weights over TensorHub: the engine's side of its weight transfer, under the name "tensorhub" (vLLM 0.33).

The wheel registers it, by vLLM's entry point for plug-ins, and the loader of the same name:

    LLM(model, weight_transfer_config=WeightTransferConfig(backend="tensorhub"))
    LLM(model, load_format="tensorhub")     # its first weights, too
"""
from __future__ import annotations

import dataclasses
import importlib
from typing import Optional

from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

from ..engines import Loaded
from .vllm_member import Member, TensorHubInitInfo, started


@dataclasses.dataclass
class TensorHubUpdateInfo(WeightTransferUpdateInfo):
    version: str = "latest"
    timeout: float = 600


class TensorHubWeightTransferEngine(WeightTransferEngine[TensorHubInitInfo, TensorHubUpdateInfo]):
    """One worker. What the loader has begun goes on, where it is of the same server, run and model."""
    init_info_cls, update_info_cls = TensorHubInitInfo, TensorHubUpdateInfo
    supports_draft_weight_update = False
    _member: Optional[Member] = None

    @property
    def last(self) -> Optional[Loaded]:
        """What the last update came to, or the loading before it."""
        return self._member.last if self._member is not None else None

    def init_transfer_engine(self, init_info: TensorHubInitInfo) -> None:
        self.shutdown()
        self._member = started.pop(self.model, None)
        if self._member is not None and self._member.place == init_info.place():
            self._member.take_from(init_info)
            return
        self.shutdown()
        self._member = Member(init_info, self.vllm_config, self.model, self.device)

    def start_weight_update(self) -> None:
        """Nothing: a reload begins once all has been received."""

    def receive_weights(self, update_info: TensorHubUpdateInfo) -> None:
        if self._member is None:
            raise RuntimeError("TensorHub: init_weight_transfer_engine was not called")
        self._member.update(update_info.version, update_info.timeout)

    def update_weights(self, update_info: dict) -> None:
        self.receive_weights(self.parse_update_info(update_info))  # the base class waits for an accelerator, also without one

    def finish_weight_update(self) -> None:
        """Nothing: an update is whole, or has failed."""

    def shutdown(self) -> None:
        if self._member is not None:
            self._member.leave()
            self._member = None


def register() -> None:
    """vLLM's plug-in; vLLM may call it more than once in a process."""
    here = __name__.rpartition(".")[0]
    for factory, module, name in ((WeightTransferEngineFactory, "vllm", "TensorHubWeightTransferEngine"),
                                  (WeightTransferTrainerFactory, "vllm_trainer", "TensorHubTrainerEngine")):
        try:
            factory.register_engine("tensorhub", "%s.%s" % (here, module), name)
        except ValueError:  # it is registered
            pass
    importlib.import_module(here + ".vllm_loader")
