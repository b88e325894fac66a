"""verl's checkpoint engine over TensorHub: actors send, rollouts receive (verl 0.9).

    actor_rollout_ref.rollout.checkpoint_engine.backend=tensorhub
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=tensorhub.adapters.verl
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.tensorhub.server=10.0.0.1:7077
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.tensorhub.run=r1
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.tensorhub.model=qwen3-8b

verl prepares and finalises at every step; the membership stays from the first to the last.
"""
from __future__ import annotations

import asyncio
import uuid
from typing import Any, AsyncIterator, Dict, Iterator, List, Optional, Tuple

import torch
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry

from .. import _hub
from ..engines import PublishedCopies

_END = object()


@CheckpointEngineRegistry.register("tensorhub")
class TensorHubCheckpointEngine(CheckpointEngine):
    """One worker. Of the actors the master publishes whole tensors; each rollout worker is a group of its own and receives
    tensor by tensor, at most `bucket_size` bytes ahead, in any order of joining."""

    def __init__(self, bucket_size: int, is_master: bool = False, server: Optional[str] = None, run: Optional[str] = None,
                 model: Optional[str] = None, timeout: float = 600, **_: Any):
        self.bucket_size, self.is_master, self.timeout = bucket_size, is_master, timeout
        self._place = {"server": server, "run": run, "model": model}
        self._hub: Optional[_hub.Hub] = None
        self._copies: Optional[PublishedCopies] = None
        self.rank: Optional[int] = None

    def prepare(self) -> Dict[str, Any]:
        return {}

    @classmethod
    def build_topology(cls, actor_wg_world_size: int, rollout_world_size: int,
                       metadata: List[dict]) -> Tuple[Dict[str, List[Any]], Dict[str, List[Any]]]:
        return ({"role": ["actor"] * actor_wg_world_size, "rank": list(range(actor_wg_world_size))},
                {"role": ["rollout"] * rollout_world_size, "rank": list(range(rollout_world_size))})

    def init_process_group(self, role: str, rank: int) -> None:
        self.rank = rank
        if self._hub is not None or (role == "actor" and not self.is_master):
            return
        group = "actor" if role == "actor" else "rollout-%d-%s" % (rank, uuid.uuid4().hex[:8])
        self._hub = _hub.join(**self._place, group=group)

    def finalize(self) -> None:
        """Nothing: what is published stays for rollouts that join later, and the membership for the next step."""

    async def send_weights(self, weights: Iterator[Tuple[str, torch.Tensor]], global_steps: Optional[int] = None) -> None:
        if not self.is_master:
            for _ in weights:  # its gathers are every rank's
                pass
            return
        if self._copies is None:
            self._copies = PublishedCopies(self._hub)
        await asyncio.to_thread(self._copies.publish, _label(global_steps), weights)

    async def receive_weights(self, global_steps: Optional[int] = None) -> AsyncIterator[Tuple[str, torch.Tensor]]:
        wanted = await self._hub.wait_for_async(_label(global_steps), self.timeout)
        with self._hub.receive(wanted.selector, limit=self.bucket_size, timeout=self.timeout, framework="torch") as tensors:
            while True:
                found = await asyncio.to_thread(next, tensors, _END)
                if found is _END:
                    break
                yield found
        if tensors.result["outcome"] == "not_available":
            raise LookupError("step %s is not available any more (%s)" % (wanted.label, tensors.result["reason"]))

    def close(self) -> None:
        """Ends the membership; what was sent is withdrawn. Idempotent."""
        if self._hub is not None:
            self._hub.leave()
            self._hub = None


def _label(global_steps: Optional[int]) -> Any:
    if global_steps is None:
        raise ValueError("TensorHub publishes versions by their step: verl passes global_steps from 0.9 on")
    return global_steps
