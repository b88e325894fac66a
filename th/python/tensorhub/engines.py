"""The core that adapters to inference engines share: a version into an engine's own buffers, by the shortest way.

    weights = EngineWeights(hub, dict(model.named_parameters()), form="vllm-0.33.0/tp1/bf16")
    loaded = weights.update("latest", load=model.load_weights)

An engine's live weights are fused and repacked: a trainer's tensors do not fit them. So the first engine of a configuration
loads by name, and publishes its own buffers as a derived form of the version; every other engine of that configuration
updates from it, buffer to buffer, and relays to the next. `form` names the configuration: engine, its release, parallel
sizes and rank, dtype, quantisation. Engines of one form must have the same buffers, with the same bytes once they are loaded.
"""
from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import time
import uuid
from typing import Any, Callable, ContextManager, Iterable, Mapping, Optional, Sequence, Tuple

from . import _hub, _receive, _tensors
from ._arguments import Bytes, Version, seconds_left
from ._errors import Aborted, Cancelled, DeadlineExceeded, Error, Unavailable

logger = logging.getLogger("tensorhub")


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The result of EngineWeights.update.

    Attributes:
      version: the version that the engine holds now.
      by_name: True if this engine loaded it by name; False if it copied other engines' buffers, or held it before.
      bytes_received: the bytes that came, by either way.
      sources: the names of the ranks that sent them: "vllm-3f/0", "trainer/0".
    """
    version: _hub.VersionInfo
    by_name: bool
    bytes_received: int
    sources: Sequence[str]


class _Whole:
    """A tensor that is put together from the shards of one rank or several."""

    def __init__(self, piece: _receive.Slice):
        import torch
        self._name, self._shape, self._parts = piece.name, piece.global_shape, {}
        self.tensor = torch.empty(piece.global_shape, dtype=getattr(torch, _receive.framework_name(piece.dtype)))

    def add(self, piece: _receive.Slice, part: Any) -> None:
        """Copies `part` to its place. Ranks that replicate a shard each bring it, with the same bytes."""
        if piece.global_shape != self._shape:
            raise ValueError("tensor %r has the shape %s by one rank, and %s by another"
                             % (self._name, self._shape, piece.global_shape))
        if 0 in piece.shape:  # such a part begins where another rank's does
            return
        if self._parts.setdefault(piece.begin, piece.shape) != piece.shape:
            raise ValueError("tensor %r: two ranks have parts that begin at %s and differ in shape" % (self._name, piece.begin))
        self.tensor[tuple(slice(begin, begin + size) for begin, size in zip(piece.begin, piece.shape))] = part

    def check(self) -> None:
        """Raises ValueError unless the parts have as many elements as the whole."""
        here = sum(math.prod(shape) for shape in self._parts.values())
        if here != math.prod(self._shape):
            raise ValueError("tensor %r has %d elements, of which the ranks that were received have %d: set source_ranks "
                             "(`ranks` of receive_whole) to the number of the trainer's ranks" % (self._name, math.prod(self._shape), here))


def receive_whole(hub: _hub.Hub, version: _hub.VersionInfo, *, names: Sequence[str] = (), form: str = "hf", ranks: int = 1,
                  group: Optional[str] = None, limit: Bytes = "256MiB", timeout: float = 600) -> Tuple[dict, int, list]:
    """The tensors of `version` by name, whole, in memory of the host: torch's. Then the bytes received, and who gave them.

    What `ranks` ranks of `group` hold in parts is put together by the parts' places. LookupError where the version is not
    available any more, ValueError where the parts are not the whole.
    """
    wholes: dict = {}
    bytes_received, sources, end = 0, [], time.monotonic() + timeout
    for rank in range(ranks):
        receiving = hub.receive(version.selector, names=names, limit=limit, form=form, group=group, rank=rank,
                                timeout=seconds_left(end), framework="torch")
        for piece, part in receiving.parts():
            if piece.name not in wholes:
                wholes[piece.name] = _Whole(piece)
            wholes[piece.name].add(piece, part)
        if receiving.result["outcome"] == "not_available":
            raise LookupError("version %s is not available in the form %r (%s)"
                              % (version.label, form, receiving.result["reason"]))
        bytes_received += receiving.result["bytes_received"]
        sources += receiving.result["sources"]
    for whole in wholes.values():
        whole.check()
    return {name: whole.tensor for name, whole in wholes.items()}, bytes_received, sources


class EngineWeights:
    """The weights of one engine process, in the engine's own buffers. One call at a time.

    `buffers` are the engine's torch tensors, by name, as `Hub.register` takes them: contiguous, and never moved. `source_form`,
    `source_group` and `source_ranks` say what is loaded by name: the trainer's form, and how many ranks hold it in parts. `source`
    has them as receive_whole takes them; it may be changed between two updates.
    """

    def __init__(self, hub: _hub.Hub, buffers: Mapping[str, Any], form: str, *, source_form: str = "hf",
                 source_group: Optional[str] = None, source_ranks: int = 1, limit: Bytes = "256MiB"):
        self._hub, self._form = hub, form
        self.source = {"form": source_form, "group": source_group, "ranks": source_ranks, "limit": limit}
        self._buffers, self._load_failed = buffers, False
        self._weights = hub.register(buffers, name="engine", form=form)

    @property
    def version(self) -> Optional[_hub.VersionInfo]:
        """What the engine holds and serves to others, None where that is no version."""
        return self._weights.version

    @property
    def undefined(self) -> bool:
        """True after an update that failed once it had begun to write: the engine must not answer until one has succeeded."""
        return self._load_failed or self._weights.undefined

    def update(self, version: Version = "latest", *, load: Callable[[Iterable[Tuple[str, Any]]], Any],
               pause: Callable[[], ContextManager[Any]] = contextlib.nullcontext, timeout: float = 600) -> Loaded:
        """Moves the engine to `version`, and offers its buffers to the other engines of its form.

        Where several engines ask for a version at the same moment, the server chooses one: that one loads by name, and the others
        wait for its buffers.

        The buffers are written within `pause()` alone; nobody may read them there. `load` is called within it with (name, tensor)
        pairs, all of which have been received and checked, and writes the buffers. What it has asked a GPU for is awaited.

        After an error before the first write the engine keeps its weights; where it was `pause()` that failed, they are offered to
        nobody any more. Where other engines' buffers cannot be had or their copy breaks off, the version is loaded by name, within
        the same pause. If that fails too, if the time is over by then, or if `load` raises, `undefined` is true, and the buffers are
        offered to nobody.
        """
        end = time.monotonic() + timeout
        while True:
            awaited = self._hub.await_form(version, self._form, seconds_left(end))
            if awaited.make:
                break
            loaded = self._copy_from_engines(awaited.version, load, pause, end)
            if loaded is not None:
                return loaded
        try:
            return self._load_by_name(awaited.version, load, pause, end)
        except BaseException:
            with contextlib.suppress(Error):
                self._hub.await_form(awaited.version.selector, self._form, 0)  # releases the claim: another engine may make it now
            raise

    def _copy_from_engines(self, wanted: _hub.VersionInfo, load: Callable, pause: Callable, end: float) -> Optional[Loaded]:
        """Copies other engines' buffers; loads by name if they do not give them. None if no engine offers the version any more:
        nothing was written."""
        with pause():
            try:
                result = self._weights.update(wanted.selector, timeout=seconds_left(end), drop_retained=True)
            except (Cancelled, DeadlineExceeded):
                raise
            except Error as error:
                if not self._weights.undefined and not isinstance(error, (Aborted, Unavailable)):
                    raise
                logger.warning("the engines that have %s do not give it (%s); it is loaded by name", wanted.label, error)
                return self._load_by_name(wanted, load, contextlib.nullcontext, end)  # within the pause
        if not result.available:
            return None
        self._load_failed = False
        return Loaded(wanted, False, result.bytes_received, [source["name"] for source in result.sources])

    def _load_by_name(self, wanted: _hub.VersionInfo, load: Callable, pause: Callable, end: float) -> Loaded:
        tensors, bytes_received, sources = receive_whole(self._hub, wanted, timeout=seconds_left(end), **self.source)
        torn = self._weights.undefined
        if not torn and self._weights.version is not None:
            self._weights.unpublish(drop_retained=True)
        with pause():
            self._load_failed = True
            load(tensors.items())
            _tensors.await_gpus(self._buffers.values())
            self._load_failed = False
        if torn:
            self._weights.reset()  # the load has overwritten what was torn
        self._weights.publish(wanted.label, derived_from=wanted.selector)
        self._weights.await_published()
        logger.info("loaded %s by name, and offer it as %s", wanted.label, self._form)
        return Loaded(wanted, True, bytes_received, sources)


def flat_buffers(tensors: Mapping[str, Any]) -> dict:
    """torch tensors as `Hub.register` takes them: one that is transposed, but has no gaps, as a flat view of its memory.

    Raises ValueError naming a tensor that has gaps in its memory.
    """
    flat = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach()
        if not tensor.is_contiguous():
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
            if last + 1 != tensor.numel():
                raise ValueError("tensor %r has gaps in its memory (shape %s, strides %s): it cannot be sent as it lies"
                                 % (name, tuple(tensor.shape), tensor.stride()))
            tensor = tensor.as_strided((tensor.numel(),), (1,))
        flat[name] = tensor
    return flat


class PublishedCopies:
    """Publishes copies of a trainer's tensors, which stay published until the next: for frameworks that hand them on one by one."""

    def __init__(self, hub: _hub.Hub):
        self._hub, self._copies = hub, {}
        self._weights: Optional[_hub.Weights] = None
        # A process that was started anew counts from 1 again with other weights, so its labels are its own.
        self._start, self._steps = uuid.uuid4().hex[:8], itertools.count(1)

    def publish_next(self, tensors: Iterable[Tuple[str, Any]]) -> _hub.VersionInfo:
        """As publish, under a label of this call and process alone: "3-1f09ab2c"."""
        return self.publish("%d-%s" % (next(self._steps), self._start), tensors)

    def publish(self, version: Version, tensors: Iterable[Tuple[str, Any]]) -> _hub.VersionInfo:
        """Copies and publishes (name, tensor) pairs, with the same names and shapes in every call. The tensors are the caller's
        again once this returns."""
        if self._weights is None:
            self._copies = {name: tensor.detach().clone().contiguous() for name, tensor in tensors}
            self._weights = self._hub.register(self._copies)
        else:
            _hub.withdraw(self._weights)
            seen = set()
            for name, tensor in tensors:
                if name not in self._copies or self._copies[name].shape != tensor.shape:
                    raise ValueError("tensor %r %s was not among those that were sent first" % (name, tuple(tensor.shape)))
                self._copies[name].copy_(tensor.detach())
                seen.add(name)
            if len(seen) != len(self._copies):
                raise ValueError("tensor %r was sent first, and not now" % min(set(self._copies) - seen))
        _tensors.await_gpus(self._copies.values())
        self._weights.publish(version)
        return self._weights.await_published()
