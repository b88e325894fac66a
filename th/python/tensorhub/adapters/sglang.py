"""SGLang takes weights over TensorHub, by a custom weight loader (SGLang 0.5).

A server has TH_SERVER, TH_RUN and TH_MODEL in its environment. What drives the update sends one small tensor, which names the version:

    engine.update_weights_from_tensor(version_tensor(version), load_format="tensorhub")

The wheel's plug-in makes that format known. Without plug-ins, as under Ray, a server is started with `--custom-weight-loader tensorhub.adapters.sglang.load`,
and the format has that name.
"""
from __future__ import annotations

import uuid
import weakref
from typing import Any, Iterable, List, Optional, Tuple

import sglang
import torch
from sglang.srt.distributed import parallel_state

from .. import _hub
from .._arguments import Version
from ..engines import EngineWeights, Loaded, flat_buffers

VERSION = "tensorhub.version"  # the name of the tensor
_engines: "weakref.WeakKeyDictionary[Any, _Engine]" = weakref.WeakKeyDictionary()  # by model


def version_tensor(version: Version) -> List[Tuple[str, torch.Tensor]]:
    """What update_weights_from_tensor is given: a step, a label, "latest", or VersionInfo.selector."""
    return [(VERSION, torch.tensor(list(str(version).encode()), dtype=torch.uint8))]


class _Engine:
    """One worker: a group of its own."""

    def __init__(self, model: Any):
        group = parallel_state._TP
        rank, size = (group.rank_in_group, group.world_size) if group is not None else (0, 1)
        tensors = flat_buffers(model.state_dict(keep_vars=True))
        dtypes = sorted({str(tensor.dtype).split(".")[-1] for tensor in tensors.values()})
        self.hub = _hub.join(group="sglang-%s-%d" % (uuid.uuid4().hex[:8], rank))
        form = "sglang-%s/tp%d/%d/%s" % (sglang.__version__, size, rank, "+".join(dtypes))
        self.weights = EngineWeights(self.hub, tensors, form)


def load(model: Any, named_tensors: Iterable[Tuple[str, torch.Tensor]]) -> None:
    """SGLang's custom weight loader. It raises where the model was not moved to the version; then it serves what it had,
    unless `load_weights` itself has failed."""
    given = dict(named_tensors)
    if set(given) != {VERSION}:
        raise ValueError("TensorHub's loader takes one tensor, %r (version_tensor makes it), not %s" % (VERSION, sorted(given)[:3]))
    version = bytes(given[VERSION].cpu().tolist()).decode()
    if model not in _engines:
        _engines[model] = _Engine(model)
    engine = _engines[model]
    device = next(model.parameters()).device

    def load_by_name(tensors: Iterable[Tuple[str, torch.Tensor]]) -> None:
        model.load_weights((name, tensor.to(device)) for name, tensor in tensors)

    engine.last = engine.weights.update(version, load=load_by_name)


def last_loaded(model: Any) -> Optional[Loaded]:
    """What the last update of `model` came to; None before the first."""
    return _engines[model].last if model in _engines else None


def leave(model: Any) -> None:
    """Withdraws the model's weights and ends its membership. Idempotent."""
    engine = _engines.pop(model, None)
    if engine is not None:
        engine.hub.leave()
