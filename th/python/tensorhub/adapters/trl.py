"""TRL's AsyncGRPOTrainer sends weights over TensorHub to vLLM servers that take them (TRL 1.16, vLLM 0.33).

    transfer = TensorHubWeightTransfer([VLLMClient(url) for url in urls], server="10.0.0.1:7077", run="r1", model="qwen3-8b")
    AsyncGRPOTrainer(..., weight_transfer=transfer)

The vLLM servers run with --weight-transfer-config '{"backend":"tensorhub"}'. Any number of them may be there, and the second
takes the weights from the first.
"""
from __future__ import annotations

from typing import Any, Iterable, Optional, Sequence, Tuple

from .. import _hub
from ..engines import PublishedCopies

_CONTROL_SECONDS = 300


class TensorHubWeightTransfer:
    """What AsyncGRPOTrainer's `weight_transfer` is, on its main process. `clients` are TRL's VLLMClient, one a server."""

    def __init__(self, clients: Sequence[Any], *, server: Optional[str] = None, run: Optional[str] = None,
                 model: Optional[str] = None, group: str = "trainer", timeout: float = 1800):
        self._clients, self._timeout, self._group = list(clients), timeout, group
        self._place = {"server": server, "run": run, "model": model}
        self._hub: Optional[_hub.Hub] = None

    def init_weight_transfer(self) -> None:
        self._hub = _hub.join(**self._place, group=self._group)
        self._copies = PublishedCopies(self._hub)
        for client in self._clients:
            client.wait_for_server_ready()
            client.init_weight_transfer_engine({**self._place, "source_group": self._group}, timeout=self._timeout)

    def pause(self) -> None:
        for client in self._clients:
            client.pause(timeout=_CONTROL_SECONDS)

    def send_weights(self, iterator: Iterable[Tuple[str, Any]]) -> None:
        """Publishes the tensors, then lets each server take them: all of them, or an exception names the server."""
        version = self._copies.publish_next(iterator)
        for client in self._clients:
            client.start_weight_update(timeout=_CONTROL_SECONDS)
            client.update_weights({"version": version.selector, "timeout": self._timeout}, timeout=self._timeout)
            client.finish_weight_update(timeout=self._timeout)

    def resume(self) -> None:
        for client in self._clients:
            client.resume(timeout=_CONTROL_SECONDS)

    def destroy(self) -> None:
        if self._hub is not None:
            self._hub.leave()
            self._hub = None
