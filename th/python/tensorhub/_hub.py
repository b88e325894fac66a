"""A rank's membership of a group, and its registered weights."""
from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import logging
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from . import _arguments, _casts, _library, _progress, _receive, _tensors
from ._arguments import Bytes, Version, encoded, given_or_environment, label_of, parse_bytes
from ._errors import Error, check
from ._handle import Handle, Lease, answer_of
from ._library import byref, lib
from ._operation import Operation, Result

logger = logging.getLogger("tensorhub")

_SEEDING = {"wait": 0, "skip": 1, "copy": 2}


def seeding_of(word: str) -> int:
    if word not in _SEEDING:
        raise ValueError("when_seeding is %r, none of %s" % (word, ", ".join(_SEEDING)))
    return _SEEDING[word]


@dataclasses.dataclass(frozen=True)
class VersionInfo:
    """A published version: its label, its place in the model's history, and what its publisher said of it."""
    label: str
    sequence: str
    attributes: Mapping[str, str]

    @property
    def selector(self) -> str:
        """The text that means exactly this version."""
        return "#" + self.sequence

    @classmethod
    def _of(cls, value: Optional[dict]) -> Optional["VersionInfo"]:
        if value is None:
            return None
        return cls(value["label"], value["sequence"], value["attributes"])


@dataclasses.dataclass(frozen=True)
class UpdateResult:
    """What an update, stage or apply came to, the same on all ranks of the group.

    Attributes:
      moved: all ranks hold `version` now.
      already_there: all held it before.
      available: False: the version is not there, and `reason` says why; the weights are as they were.
      stall: the seconds that this rank's weights could not be used; `seconds` has the phases.
      sources: who gave how much, over what.
      event: the operation's name, as in `th events`.
      details: the library's complete JSON.
    """
    moved: bool
    already_there: bool
    available: bool
    reason: str
    version: VersionInfo
    bytes_received: int
    stall: float
    seconds: Mapping[str, float]
    sources: Sequence[Mapping[str, Any]]
    event: str
    details: Mapping[str, Any]

    @classmethod
    def _of(cls, result: Result) -> "UpdateResult":
        value = result.value
        return cls(moved=result.outcome == _library.MOVED, already_there=result.outcome == _library.ALREADY_THERE,
                   available=result.outcome != _library.NOT_AVAILABLE, reason=value["reason"],
                   version=VersionInfo._of(value["version"]), bytes_received=value["bytes_received"],
                   stall=value["seconds"]["stall"], seconds=value["seconds"], sources=value["sources"],
                   event=value["event"], details=value)


@dataclasses.dataclass(frozen=True)
class AwaitedForm:
    """What Hub.await_form came to.

    Attributes:
      version: that is offered in the form, or is to be.
      make: True where this group is the one that makes the form.
    """
    version: VersionInfo
    make: bool

    @classmethod
    def _of(cls, value: Mapping[str, Any]) -> "AwaitedForm":
        return cls(version=VersionInfo._of(value["version"]), make=value["make"])


class Hub:
    """One rank's membership of a group of a model; made by `tensorhub.join`. A context manager: it leaves at the end.

    May be used on any thread. It is of the process that has joined: calls in a forked child raise FailedPrecondition.
    """

    def __init__(self, client: Lease, description: str):
        self._handle = Handle(client, "this client has left: join again")
        self._description = description

    def __repr__(self) -> str:
        return "<tensorhub.Hub %s%s>" % (self._description, "" if self._handle.is_open else ", left")

    def __enter__(self) -> "Hub":
        return self

    def __exit__(self, *_: Any) -> None:
        self.leave()

    def _leave(self, timeout: float) -> Operation:
        # Where Ctrl-C leaves the operation to the reaper, the client ends there too, and not on this thread.
        return self._operation(lib.th_leave_start, _arguments.seconds(timeout), keep=self._handle.lease())

    def leave(self, timeout: float = 5) -> None:
        """Leaves the group. Readers end the segment under way; weights that are registered end. Idempotent."""
        if not self._handle.is_open:
            return
        try:
            self._leave(timeout).run()
        finally:
            self._handle.close()

    async def leave_async(self, timeout: float = 5) -> None:
        """As leave, for event loops."""
        if not self._handle.is_open:
            return
        try:
            await self._leave(timeout).run_async()
        finally:
            self._handle.close()

    def _operation(self, start: Callable[..., int], *arguments: Any, **options: Any) -> Operation:
        return Operation(start, *arguments, on=self._handle, **options)

    def check(self) -> None:
        """Raises why the membership has ended; nothing while it lives."""
        check(self._handle.call(lib.th_membership))

    def info(self) -> dict:
        """{"connected", "data_endpoint", "control_bytes", "left_out"}."""
        return answer_of(self._handle, lib.th_client_info)

    def preempt(self, seconds: float) -> None:
        """A notice that this process goes in so many seconds: readers are moved to other sources, then it leaves."""
        check(self._handle.call(lib.th_preempt, _arguments.seconds(seconds, "seconds")))

    # ---- registering

    def _register(self, values: Any, name: str, form: str, segment_bytes: Bytes, checksums: bool, dtype: Any) -> tuple:
        casts = _casts.Casts(dtype)
        described = [casts.registered(_tensors.describe(each, value), value) for each, value in _tensors.named_tensors(values)]
        options = _library.RegisterOptions(name=name, form=form,
                                           segment_bytes=parse_bytes(segment_bytes, "segment_bytes"),
                                           no_checksums=0 if checksums else 1)
        array, keep = _tensors.as_array(described)
        return described, casts, self._operation(lib.th_register_start, array, ctypes.c_size_t(len(described)), byref(options),
                                                 keep=(self, described, keep, options), makes="buffer")

    def register(self, values: Any, *, name: str = "weights", form: str = "hf", segment_bytes: Bytes = 0,
                 checksums: bool = True, dtype: Any = None) -> "Weights":
        """Registers a module, a state dict or another mapping of names to arrays as one shard. Nothing is copied.

        Arrays are torch tensors (DTensor shards keep their place in the whole), numpy arrays, or anything with DLPack or the
        writable buffer protocol. They are referred to until the weights are unregistered, and must not be resized, nor
        written while they are published. All ranks of the group register under the same `name`.

        With `dtype` ("bfloat16", torch.bfloat16) floating-point tensors of torch and numpy are registered in that type, in
        memory of their own that is kept: publish casts the values into it, so that the tensors may be written once it has
        returned, and update and apply cast them back. Other tensors are registered as they are.

        Raises ValueError or TypeError naming the tensor that cannot be taken, or a name and form that are registered already.
        """
        described, casts, operation = self._register(values, name, form, segment_bytes, checksums, dtype)
        return Weights(self, operation.run().made, name, described, casts)

    async def register_async(self, values: Any, *, name: str = "weights", form: str = "hf", segment_bytes: Bytes = 0,
                             checksums: bool = True, dtype: Any = None) -> "Weights":
        """As register, for event loops."""
        described, casts, operation = self._register(values, name, form, segment_bytes, checksums, dtype)
        return Weights(self, (await operation.run_async()).made, name, described, casts)

    # ---- looking and waiting

    def _wait_for(self, version: Version, timeout: float) -> Operation:
        return self._operation(lib.th_wait_for_start, label_of(version), _arguments.seconds(timeout))

    def wait_for(self, version: Version = "latest", timeout: float = 600) -> VersionInfo:
        """Waits until `version` is published. DeadlineExceeded says why it is not there."""
        return VersionInfo._of(self._wait_for(version, timeout).run().value)

    async def wait_for_async(self, version: Version = "latest", timeout: float = 600) -> VersionInfo:
        """As wait_for, for event loops."""
        return VersionInfo._of((await self._wait_for(version, timeout).run_async()).value)

    def _await_form(self, version: Version, form: str, timeout: float) -> Operation:
        return self._operation(lib.th_await_form_start, label_of(version), encoded(form, "form"), _arguments.seconds(timeout))

    def await_form(self, version: Version, form: str, timeout: float = 600) -> AwaitedForm:
        """Waits until a group offers `version` in `form`, or this one is the group that is to make it, by a publish with
        `derived_from`: one group at a time, until it has published the form, has left, or half of its `timeout` is over.
        With a timeout of 0 the group that was chosen gives the form back, as after a failure. DeadlineExceeded says why the
        version is not there, or who makes the form."""
        return AwaitedForm._of(self._await_form(version, form, timeout).run().value)

    async def await_form_async(self, version: Version, form: str, timeout: float = 600) -> AwaitedForm:
        """As await_form, for event loops."""
        return AwaitedForm._of((await self._await_form(version, form, timeout).run_async()).value)

    def _roll_back(self, to: Version, idempotency_key: str) -> Operation:
        return self._operation(lib.th_roll_back_start, label_of(to), encoded(idempotency_key, "idempotency_key"))

    def roll_back(self, to: Version, idempotency_key: str = "") -> VersionInfo:
        """Withdraws every version after `to`, once for its key."""
        return VersionInfo._of(self._roll_back(to, idempotency_key).run().value)

    async def roll_back_async(self, to: Version, idempotency_key: str = "") -> VersionInfo:
        """As roll_back, for event loops."""
        return VersionInfo._of((await self._roll_back(to, idempotency_key).run_async()).value)

    def receive(self, version: Version = "latest", *, names: Sequence[str] = (), limit: Bytes = "64MiB",
                form: str = "hf", group: Optional[str] = None, rank: int = 0, timeout: float = 600,
                framework: Optional[str] = None) -> "_receive.Receive":
        """Iterates over tensors of one shard of `version` as they arrive: `for name, tensor in hub.receive("latest"): ...`

        A version that is not available gives no tensor: the iterator's `result` says what it came to. It has no twin for event loops:
        iterate on another thread (asyncio.to_thread). Nothing is kept, and this client is no source of it. `names` are names or
        patterns with * and ?; `limit` bounds the memory for what has arrived and is not taken yet, so a slow consumer slows the
        transfer. A call of the group: every rank makes it, in the same order among its receives. `group` and `rank` say whose
        shard, where there are several.
        `framework` is "torch", "numpy" or "bytes"; by default torch where it is imported, else numpy, else bytes.
        """
        return _receive.Receive(self._handle, version, names, parse_bytes(limit, "limit"), form, group, rank, timeout, framework)


class Weights:
    """A registered set of tensors: one shard of this rank; made by `Hub.register`.

    publish, unpublish, update, stage and apply are calls of the group: every rank makes them, in the same order, and all get
    one result. One at a time on one object.
    """

    def __init__(self, hub: Hub, buffer: Lease, name: str, described: Sequence[_tensors.Described], casts: _casts.Casts):
        self._hub, self.name, self._tensors, self._casts = hub, name, described, casts
        buffer.keep.append(described)
        self._handle = Handle(buffer, "these weights are unregistered: register them again")

    def __repr__(self) -> str:
        return "<tensorhub.Weights %r of %r, %d tensors>" % (self.name, self._hub, len(self._tensors))

    def _operation(self, start: Callable[..., int], *arguments: Any, keep: Any = None) -> Operation:
        return Operation(start, *arguments, on=self._handle, keep=(self, keep))

    def _check_places(self) -> None:
        """ValueError naming a tensor whose memory is not as it was registered."""
        for each in self._tensors:
            if each.place_now is not None and each.place_now() != each.place:
                raise ValueError("tensor %r lies elsewhere since it was registered, or has another shape (it was resized, its "
                                 "data replaced or its storage freed): register the weights again, or rebind them" % each.name)

    def unregister(self) -> None:
        """Withdraws the weights: readers end the segment under way. The tensors are referred to no more. Idempotent."""
        self._handle.close()
        self._tensors, self._casts = [], _casts.Casts()

    @contextlib.contextmanager
    def _rebinding(self, values: Any) -> Iterator[Operation]:
        """Starts a rebind. Both memories are kept alive until the library has answered, and where Ctrl-C hides the answer as long
        as the handle."""
        if self._casts:
            raise ValueError("weights that are registered with dtype= have memory of their own: unregister them, and register the "
                             "other tensors")
        described = [_tensors.describe(each, value) for each, value in _tensors.named_tensors(values)]
        array, keep = _tensors.as_array(described)
        kept = self._handle.lease().keep
        kept.append(described)
        try:
            yield self._operation(lib.th_rebind_start, array, ctypes.c_size_t(len(described)), keep=(described, keep))
        except Error:
            kept.remove(described)
            raise
        kept[:] = [described]
        self._tensors = described

    def rebind(self, values: Any) -> None:
        """Moves the registration to other memory of the same tensors. The weights must be neither published, being filled nor
        undefined."""
        with self._rebinding(values) as operation:
            operation.run()

    async def rebind_async(self, values: Any) -> None:
        """As rebind, for event loops."""
        with self._rebinding(values) as operation:
            await operation.run_async()

    # ---- publishing

    def _publish(self, version: Version, attributes: Optional[Mapping[str, str]], timeout: float, snapshot: bool,
                 snapshot_or_in_place: bool, derived_from: Optional[str], after_cuda_event: Optional[int]) -> Operation:
        options = _library.PublishOptions(
            attributes=json.dumps(dict(attributes)) if attributes else None, timeout=timeout,
            derived_from=derived_from, snapshot=int(snapshot or snapshot_or_in_place),
            snapshot_or_in_place=int(snapshot_or_in_place), after_cuda_event=after_cuda_event)
        self._check_places()
        if self._casts and after_cuda_event is not None:
            raise ValueError("after_cuda_event is for tensors that are published themselves; these are cast (dtype=) on torch's "
                             "current stream: make that wait for the event")
        if self._casts and self.version is None:
            # While something is held or published, readers could be reading the twins: the library refuses the publish then.
            self._casts.write_twins()
        if after_cuda_event is None:
            _tensors.await_current_streams(each.keep for each in self._tensors)
        return self._operation(lib.th_publish_start, label_of(version), byref(options), keep=options)

    def publish(self, version: Version, *, attributes: Optional[Mapping[str, str]] = None, timeout: float = 60,
                snapshot: bool = False, snapshot_or_in_place: bool = False, derived_from: Optional[str] = None,
                after_cuda_event: Optional[int] = None) -> None:
        """Freezes the weights and offers them as `version`, a step or a label; returns at once.

        They must not be written until unpublish has returned. With `snapshot` a copy in host memory is published instead
        (join's `snapshot_limit`), and they may be written once this returns; with `snapshot_or_in_place` they are published
        in place where there is no room. `derived_from` is the selector of the version of which this is another form.
        What torch's current streams were asked for is awaited first. Where `after_cuda_event` (torch: Event.cuda_event) is given,
        that event is, by the library: this call does not block for it.
        """
        self._publish(version, attributes, timeout, snapshot, snapshot_or_in_place, derived_from, after_cuda_event).run()

    async def publish_async(self, version: Version, *, attributes: Optional[Mapping[str, str]] = None, timeout: float = 60,
                            snapshot: bool = False, snapshot_or_in_place: bool = False, derived_from: Optional[str] = None,
                            after_cuda_event: Optional[int] = None) -> None:
        """As publish, for event loops. With register's dtype the cast is made on this thread, before the first await."""
        await self._publish(version, attributes, timeout, snapshot, snapshot_or_in_place, derived_from,
                            after_cuda_event).run_async()

    def await_published(self) -> VersionInfo:
        """Waits until all ranks have published: the version is there for readers."""
        return VersionInfo._of(self._operation(lib.th_await_published_start).run().value)

    async def await_published_async(self) -> VersionInfo:
        """As await_published, for event loops."""
        return VersionInfo._of((await self._operation(lib.th_await_published_start).run_async()).value)

    def _unpublish(self, drain_timeout: float, timeout: float, drop_retained: bool, offload_timeout: float) -> Operation:
        options = _library.UnpublishOptions(drain_timeout=drain_timeout, timeout=timeout, drop_retained=int(drop_retained),
                                            offload_timeout=offload_timeout)
        return self._operation(lib.th_unpublish_start, byref(options), keep=options)

    def unpublish(self, *, drain_timeout: float = 5, timeout: float = 60, drop_retained: bool = False,
                  offload_timeout: float = 60) -> None:
        """Takes the weights back: once this returns they may be written. Readers in flight are cut after `drain_timeout`.

        What is retained and nobody else has is copied to host memory first (join's `offload_limit`), unless `drop_retained`.
        Ctrl-C raises at once, but the weights must not be written before another unpublish has returned.
        """
        self._unpublish(drain_timeout, timeout, drop_retained, offload_timeout).run()

    async def unpublish_async(self, *, drain_timeout: float = 5, timeout: float = 60, drop_retained: bool = False,
                              offload_timeout: float = 60) -> None:
        """As unpublish, for event loops."""
        await self._unpublish(drain_timeout, timeout, drop_retained, offload_timeout).run_async()

    @contextlib.contextmanager
    def published(self, version: Version, **options: Any) -> Iterator[VersionInfo]:
        """Publishes, waits for all ranks, and unpublishes at the end, also after an exception. Options as of publish.

            with weights.published(step):
                generate()
        """
        self.publish(version, **options)
        try:
            yield self.await_published()
        finally:
            self.unpublish()

    # ---- moving to a version

    @contextlib.contextmanager
    def _casting_back(self) -> Iterator[Callable[[Result], UpdateResult]]:
        """While a call runs that may write the twins. Yields what takes its result: the caller's own tensors have what came then. Where
        that was interrupted, the next call makes up for it, also one that finds the version there."""
        casts, doubted = self._casts, self._casts.in_doubt

        def finished(result: Result) -> UpdateResult:
            update = UpdateResult._of(result)
            if update.moved or (update.already_there and doubted):
                casts.read_twins()
            casts.in_doubt = doubted and not update.available
            return update

        casts.in_doubt = True
        try:
            yield finished
        except Error:
            casts.in_doubt = doubted
            raise

    def _update(self, version: Version, timeout: float, drain_timeout: float, floor: Optional[str], drop_retained: bool,
                offload_timeout: float, when_seeding: str, in_place: bool) -> Operation:
        options = _library.UpdateOptions(
            timeout=timeout, drain_timeout=drain_timeout, floor=floor, drop_retained=int(drop_retained),
            offload_timeout=offload_timeout, when_seeding=seeding_of(when_seeding), in_place=int(in_place))
        self._check_places()
        return self._operation(lib.th_update_start, label_of(version), byref(options), keep=options)

    def update(self, version: Version = "latest", *, timeout: float = 600, drain_timeout: float = 5,
               floor: Optional[str] = None, drop_retained: bool = False, offload_timeout: float = 60,
               when_seeding: str = "wait", in_place: bool = False, progress: bool = False,
               on_progress: Optional[Callable[[int, int], None]] = None) -> UpdateResult:
        """Moves the weights, on all ranks of the group, to `version`: "latest", a step, a label, or "#epoch.number".

        Not available is no error: result.available is False, and the weights are as they were. Nothing older than `floor` is
        taken. While the version is on its way into this site `when_seeding` says whether to wait, skip or copy.
        `on_progress(bytes_received, bytes_total)` is called on this thread, up to twenty times a second; `progress` draws it
        as a line where stderr is a terminal.

        After an error see `undefined`. Ctrl-C leaves the weights as they were where nothing has been written yet.
        """
        with _progress.shown(progress, on_progress, "update") as report:
            operation = self._update(version, timeout, drain_timeout, floor, drop_retained, offload_timeout, when_seeding, in_place)
            with self._casting_back() as finished:
                return finished(operation.run(report))

    async def update_async(self, version: Version = "latest", *, timeout: float = 600, drain_timeout: float = 5,
                           floor: Optional[str] = None, drop_retained: bool = False, offload_timeout: float = 60,
                           when_seeding: str = "wait", in_place: bool = False) -> UpdateResult:
        """As update, for event loops; a task that is cancelled cancels it."""
        operation = self._update(version, timeout, drain_timeout, floor, drop_retained, offload_timeout, when_seeding, in_place)
        with self._casting_back() as finished:
            return finished(await operation.run_async())

    def _stage(self, version: Version, timeout: float, floor: Optional[str], when_seeding: str) -> Operation:
        options = _library.StageOptions(timeout=timeout, floor=floor, when_seeding=seeding_of(when_seeding))
        return self._operation(lib.th_stage_start, label_of(version), byref(options), keep=options)

    def stage(self, version: Version = "latest", *, timeout: float = 600, floor: Optional[str] = None,
              when_seeding: str = "wait", progress: bool = False,
              on_progress: Optional[Callable[[int, int], None]] = None) -> UpdateResult:
        """Receives a version into spare host memory (join's `staging_limit`) while the weights stay in use."""
        with _progress.shown(progress, on_progress, "stage") as report:
            return UpdateResult._of(self._stage(version, timeout, floor, when_seeding).run(report))

    async def stage_async(self, version: Version = "latest", *, timeout: float = 600, floor: Optional[str] = None,
                          when_seeding: str = "wait") -> UpdateResult:
        """As stage, for event loops."""
        return UpdateResult._of(await self._stage(version, timeout, floor, when_seeding).run_async())

    def _apply(self, timeout: float, drain_timeout: float, drop_retained: bool, offload_timeout: float) -> Operation:
        options = _library.ApplyOptions(timeout=timeout, drain_timeout=drain_timeout, drop_retained=int(drop_retained),
                                        offload_timeout=offload_timeout)
        self._check_places()
        return self._operation(lib.th_apply_start, byref(options), keep=options)

    def apply(self, *, timeout: float = 60, drain_timeout: float = 5, drop_retained: bool = False,
              offload_timeout: float = 60) -> UpdateResult:
        """Moves what is staged into the weights, on all ranks or on none."""
        operation = self._apply(timeout, drain_timeout, drop_retained, offload_timeout)
        with self._casting_back() as finished:
            return finished(operation.run())

    async def apply_async(self, *, timeout: float = 60, drain_timeout: float = 5, drop_retained: bool = False,
                          offload_timeout: float = 60) -> UpdateResult:
        """As apply, for event loops."""
        operation = self._apply(timeout, drain_timeout, drop_retained, offload_timeout)
        with self._casting_back() as finished:
            return finished(await operation.run_async())

    def discard_staged(self) -> None:
        """Frees what is staged."""
        check(self._handle.call(lib.th_discard_staged))

    # ---- state

    @property
    def version(self) -> Optional[VersionInfo]:
        """What the weights hold, None where that is no version."""
        return VersionInfo._of(answer_of(self._handle, lib.th_buffer_version))

    @property
    def staged(self) -> Optional[VersionInfo]:
        """What is staged, None where nothing is."""
        return VersionInfo._of(answer_of(self._handle, lib.th_staged))

    @property
    def undefined(self) -> bool:
        """True after an update that failed once it had begun to write: do not serve; update again, or reset."""
        return bool(self._handle.call(lib.th_buffer_undefined))

    def reset(self) -> None:
        """Leaves `undefined`: the caller answers for the content."""
        self._operation(lib.th_buffer_reset_start).run()

    async def reset_async(self) -> None:
        """As reset, for event loops."""
        await self._operation(lib.th_buffer_reset_start).run_async()

    @property
    def bytes(self) -> int:
        """The bytes of all tensors, tied ones once."""
        return self._handle.call(lib.th_buffer_bytes)

    def info(self) -> dict:
        """{"bytes", "layout", "snapshot_bytes", "bytes_sent", "gpu_registrations"}."""
        return answer_of(self._handle, lib.th_buffer_info)


def withdraw(weights: Weights) -> None:
    """Unpublishes what is published, and drops what is retained. A publication that is lost already (PUBLICATION_LOST) is none."""
    try:
        if weights.version is not None:
            weights.unpublish(drop_retained=True)
    except Error as error:
        if error.code_word != "PUBLICATION_LOST":
            raise


def _join(server: Optional[str], run: Optional[str], model: Optional[str], group: str, rank: int, ranks: int, timeout: float,
          location: Optional[str], spot: bool, offload_limit: Bytes, staging_limit: Bytes, snapshot_limit: Bytes,
          transports: Sequence[str], strict_transport: bool, data_address: Optional[str],
          uplink_bytes_per_second: Bytes) -> tuple:
    given = {"server": server, "run": run, "model": model}
    for name, value in given.items():
        given[name] = given_or_environment(name, value)
        if not given[name]:
            raise ValueError("%s is missing: give it to join, or set TH_%s" % (name, name.upper()))
    if ranks == 0:
        raise ValueError("ranks is 0: a group has one rank at least")
    if isinstance(transports, str):
        raise TypeError("transports is a list of names, not the text %r" % transports)
    options = _library.JoinOptions(
        **given, group=group, rank=rank, ranks=ranks,
        join_timeout=_arguments.nonzero_seconds(timeout), location=location, spot=int(spot),
        offload_limit_bytes=parse_bytes(offload_limit, "offload_limit"),
        staging_limit_bytes=parse_bytes(staging_limit, "staging_limit"),
        snapshot_limit_bytes=parse_bytes(snapshot_limit, "snapshot_limit"),
        transports=",".join(transports) or None, strict_transport=int(strict_transport),
        data_address=data_address,
        uplink_bytes_per_second=parse_bytes(uplink_bytes_per_second, "uplink_bytes_per_second"))
    description = "run=%s model=%s %s/%d" % (given["run"], given["model"], group, rank)
    return description, Operation(lib.th_join_start, byref(options), keep=options, makes="client")


def join(server: Optional[str] = None, *, run: Optional[str] = None, model: Optional[str] = None, group: str, rank: int = 0,
         ranks: int = 1, timeout: float = 10, location: Optional[str] = None, spot: bool = False, offload_limit: Bytes = 0,
         staging_limit: Bytes = 0, snapshot_limit: Bytes = 0, transports: Sequence[str] = (), strict_transport: bool = False,
         data_address: Optional[str] = None, uplink_bytes_per_second: Bytes = 0) -> Hub:
    """Joins `group` of a model as `rank` of `ranks`. TH_SERVER, TH_RUN and TH_MODEL stand for what is not given.

    `server` is "host:port" of the reference server. Limits are bytes, or texts as "64GiB": of host memory for copies of
    retained versions (`offload_limit`), versions received beside what is in use (`staging_limit`) and published copies
    (`snapshot_limit`). `data_address` is where to serve weights: an address, an interface or a network of this machine, and a
    port or a range of them, as "eth1" or "10.1.0.0/16:4711-4720". `transports` are "cuda_ipc", "same_host", "ibverbs", "tcp", the best first; empty: all.
    What is said of the data plane (`data_address`, `transports`, `strict_transport`, `uplink_bytes_per_second`) is the same in all
    joins of a process to one server, also in that of tensorhub.store: the first one decides.

    Raises Unavailable without a server within `timeout` seconds, AlreadyExists naming the live worker that holds the rank.
    """
    description, operation = _join(server, run, model, group, rank, ranks, timeout, location, spot, offload_limit,
                                   staging_limit, snapshot_limit, transports, strict_transport, data_address,
                                   uplink_bytes_per_second)
    hub = Hub(operation.run().made, description)
    logger.info("joined %s", description)
    return hub


async def join_async(server: Optional[str] = None, *, run: Optional[str] = None, model: Optional[str] = None, group: str,
                     rank: int = 0, ranks: int = 1, timeout: float = 10, location: Optional[str] = None, spot: bool = False,
                     offload_limit: Bytes = 0, staging_limit: Bytes = 0, snapshot_limit: Bytes = 0,
                     transports: Sequence[str] = (), strict_transport: bool = False, data_address: Optional[str] = None,
                     uplink_bytes_per_second: Bytes = 0) -> Hub:
    """As join, for event loops."""
    description, operation = _join(server, run, model, group, rank, ranks, timeout, location, spot, offload_limit,
                                   staging_limit, snapshot_limit, transports, strict_transport, data_address,
                                   uplink_bytes_per_second)
    hub = Hub((await operation.run_async()).made, description)
    logger.info("joined %s", description)
    return hub
