"""vLLM's trainers send weights over TensorHub: the trainer's side of its weight transfer (vLLM 0.33).

Rank 0, which has whole tensors, sends; the others take part in gathering them:

    engine = WeightTransferTrainerFactory.trainer_init(
        TensorHubTrainerInitInfo(rank=rank, server="10.0.0.1:7077", run="r1", model="qwen3-8b"), client=client,
        source=ModuleSource(model))
    engine.send_weights()                      # once a step
"""
from __future__ import annotations

import dataclasses
from typing import ClassVar

from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine

from .. import _hub
from ..engines import PublishedCopies


@dataclasses.dataclass
class TensorHubTrainerInitInfo(TrainerInitInfo):
    backend: ClassVar[str] = "tensorhub"
    server: str
    run: str
    model: str
    group: str = "trainer"


class TensorHubTrainerEngine(TrainerWeightTransferEngine[TensorHubTrainerInitInfo]):
    """Rank 0 publishes whole tensors out of an arena of its own, until the next ones are sent."""
    init_info_cls = TensorHubTrainerInitInfo

    @classmethod
    def trainer_init(cls, init_info, *, client, source=None):
        if source is None or not source.implements_iter_full():
            raise ValueError("TensorHub sends whole tensors: give a WeightSource with iter_full")
        self = cls(client=client, source=source, is_sender=init_info.is_sender, rank=init_info.rank)
        if self.is_sender:
            place = {"server": init_info.server, "run": init_info.run, "model": init_info.model}
            self._hub = _hub.join(**place, group=init_info.group)
            self._copies = PublishedCopies(self._hub)
            client.init_weight_transfer_engine({**place, "source_group": init_info.group})
        return self

    def send_weights(self) -> None:
        whole = self.source.iter_full()  # its gathers are every rank's
        if not self.is_sender:
            for _ in whole:
                pass
            return
        version = self._copies.publish_next(whole)
        self.client.start_weight_update()
        self.client.update_weights({"version": version.selector})
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        if self.is_sender:
            self._hub.leave()
