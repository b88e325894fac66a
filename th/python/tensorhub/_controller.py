"""A client without a rank: it looks, waits, pins and rolls back."""
from __future__ import annotations

import ctypes
from typing import Any, Callable, Optional, Sequence

from ._arguments import Version, encoded, given_or_environment, integer, label_of, nonzero_seconds, seconds
from ._handle import Handle, Lease
from ._hub import VersionInfo
from ._library import lib
from ._operation import Operation


class Applied:
    """Which groups hold a version whole; true where all do."""

    def __init__(self, value: dict):
        self.all: bool = value["all"]
        self.version = VersionInfo._of(value["version"])
        self.applied: list = value["applied"]
        self.lacking: dict = {each["group"]: each["why"] for each in value["lacking"]}

    def __bool__(self) -> bool:
        return self.all

    def __repr__(self) -> str:
        return "<tensorhub.Applied %s applied=%r lacking=%r>" % (self.version.label, self.applied, self.lacking)


class Controller:
    """Made by `tensorhub.connect`. May be used on any thread. A context manager.

    Times are in seconds. Errors of all: DeadlineExceeded; Unavailable while the server recovers from a restart; of those that
    name a version NotFound, and FailedPrecondition where it was withdrawn.
    """

    def __init__(self, controller: Lease, description: str):
        self._handle = Handle(controller, "this controller is closed: connect again")
        self._description = description

    def __repr__(self) -> str:
        return "<tensorhub.Controller %s>" % self._description

    def __enter__(self) -> "Controller":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection. Idempotent."""
        self._handle.close()

    def _start(self, start: Callable[..., int], *arguments: Any) -> Operation:
        return Operation(start, *arguments, on=self._handle, keep=self)

    def list(self, timeout: float = 10) -> dict:
        """Models, versions, and who holds them: what `th list --json` shows."""
        return self._start(lib.th_controller_list_start, seconds(timeout)).run().value

    async def list_async(self, timeout: float = 10) -> dict:
        """As list, for event loops."""
        return (await self._start(lib.th_controller_list_start, seconds(timeout)).run_async()).value

    def _events(self, after: int, id: Optional[str], timeout: float) -> Operation:
        return self._start(lib.th_events_start, integer(after, "after", ctypes.c_uint64), encoded(id, "id"), seconds(timeout))

    def events(self, after: int = 0, id: Optional[str] = None, timeout: float = 10) -> dict:
        """The recent events of the run and model, and the server's own, oldest first; ask on with `after` = the answer's "last"."""
        return self._events(after, id, timeout).run().value

    async def events_async(self, after: int = 0, id: Optional[str] = None, timeout: float = 10) -> dict:
        """As events, for event loops."""
        return (await self._events(after, id, timeout).run_async()).value

    def _resolve(self, version: Version, timeout: float) -> Operation:
        return self._start(lib.th_resolve_start, label_of(version), seconds(timeout))

    def resolve(self, version: Version = "latest", timeout: float = 10) -> VersionInfo:
        """Which version the name stands for now."""
        return VersionInfo._of(self._resolve(version, timeout).run().value)

    async def resolve_async(self, version: Version = "latest", timeout: float = 10) -> VersionInfo:
        """As resolve, for event loops."""
        return VersionInfo._of((await self._resolve(version, timeout).run_async()).value)

    def _wait_for(self, version: Version, timeout: float) -> Operation:
        return self._start(lib.th_controller_wait_for_start, label_of(version), seconds(timeout))

    def wait_for(self, version: Version = "latest", timeout: float = 600) -> VersionInfo:
        """Waits until `version` is published. DeadlineExceeded says why it is not there."""
        return VersionInfo._of(self._wait_for(version, timeout).run().value)

    async def wait_for_async(self, version: Version = "latest", timeout: float = 600) -> VersionInfo:
        """As wait_for, for event loops."""
        return VersionInfo._of((await self._wait_for(version, timeout).run_async()).value)

    def _wait_applied(self, version: Version, groups: Sequence[str], timeout: float) -> Operation:
        if isinstance(groups, str):
            raise TypeError("groups is a list of groups, not the text %r" % groups)
        names = (ctypes.c_char_p * max(len(groups), 1))(*[encoded(group, "a group") for group in groups])
        return self._start(lib.th_wait_applied_start, label_of(version), names, ctypes.c_size_t(len(groups)),
                           seconds(timeout))

    def wait_applied(self, version: Version, groups: Sequence[str], timeout: float = 600) -> Applied:
        """Waits until all of `groups` hold `version` whole, or the time is over: the result says who lacks it, and why."""
        return Applied(self._wait_applied(version, groups, timeout).run().value)

    async def wait_applied_async(self, version: Version, groups: Sequence[str], timeout: float = 600) -> Applied:
        """As wait_applied, for event loops."""
        return Applied((await self._wait_applied(version, groups, timeout).run_async()).value)

    def _find_shard(self, version: Version, form: Optional[str], group: Optional[str], rank: int, timeout: float) -> Operation:
        return self._start(lib.th_find_shard_start, label_of(version), encoded(form, "form"), encoded(group, "group"),
                           integer(rank, "rank"), seconds(timeout))

    def find_shard(self, version: Version = "latest", *, form: Optional[str] = None, group: Optional[str] = None,
                   rank: int = 0, timeout: float = 10) -> dict:
        """Which shard a receive of `group` and `rank` means: {"reason", "layout"}."""
        return self._find_shard(version, form, group, rank, timeout).run().value

    async def find_shard_async(self, version: Version = "latest", *, form: Optional[str] = None, group: Optional[str] = None,
                               rank: int = 0, timeout: float = 10) -> dict:
        """As find_shard, for event loops."""
        return (await self._find_shard(version, form, group, rank, timeout).run_async()).value

    def layout(self, digest: str, timeout: float = 10) -> dict:
        """The tensors of a shard, by its digest."""
        return self._start(lib.th_get_layout_start, encoded(digest, "digest"), seconds(timeout)).run().value

    async def layout_async(self, digest: str, timeout: float = 10) -> dict:
        """As layout, for event loops."""
        return (await self._start(lib.th_get_layout_start, encoded(digest, "digest"), seconds(timeout)).run_async()).value

    def _roll_back(self, to: Version, idempotency_key: str) -> Operation:
        return self._start(lib.th_controller_roll_back_start, label_of(to), encoded(idempotency_key, "idempotency_key"))

    def roll_back(self, to: Version, idempotency_key: str = "") -> VersionInfo:
        """Withdraws every version after `to`, once for its key."""
        return VersionInfo._of(self._roll_back(to, idempotency_key).run().value)

    async def roll_back_async(self, to: Version, idempotency_key: str = "") -> VersionInfo:
        """As roll_back, for event loops."""
        return VersionInfo._of((await self._roll_back(to, idempotency_key).run_async()).value)

    def _retain(self, keep_latest: int, form: Optional[str]) -> Operation:
        return self._start(lib.th_retain_start, integer(keep_latest, "keep_latest"), encoded(form, "form"))

    def retain(self, keep_latest: int, form: Optional[str] = None) -> None:
        """The `keep_latest` newest versions stay fetchable; 0: no policy. `form` None: every form."""
        self._retain(keep_latest, form).run()

    async def retain_async(self, keep_latest: int, form: Optional[str] = None) -> None:
        """As retain, for event loops."""
        await self._retain(keep_latest, form).run_async()

    def _pin(self, version: Version, owner: str, expires_after: float, form: Optional[str]) -> Operation:
        return self._start(lib.th_pin_start, label_of(version), encoded(owner, "owner"), seconds(expires_after, "expires_after"), encoded(form, "form"))

    def pin(self, version: Version, owner: str, expires_after: float = 0, form: Optional[str] = None) -> VersionInfo:
        """Keeps `version` fetchable until release, or for so many seconds; each owner's pin counts by itself."""
        return VersionInfo._of(self._pin(version, owner, expires_after, form).run().value)

    async def pin_async(self, version: Version, owner: str, expires_after: float = 0,
                        form: Optional[str] = None) -> VersionInfo:
        """As pin, for event loops."""
        return VersionInfo._of((await self._pin(version, owner, expires_after, form).run_async()).value)

    def _release(self, version: Version, owner: str, form: Optional[str]) -> Operation:
        return self._start(lib.th_release_start, label_of(version), encoded(owner, "owner"), encoded(form, "form"))

    def release(self, version: Version, owner: str, form: Optional[str] = None) -> None:
        """Ends the owner's pin. NotFound: it has none."""
        self._release(version, owner, form).run()

    async def release_async(self, version: Version, owner: str, form: Optional[str] = None) -> None:
        """As release, for event loops."""
        await self._release(version, owner, form).run_async()

    def _forget(self) -> Operation:
        return self._start(lib.th_forget_start)

    def forget(self) -> None:
        """The server's record of the model goes: its versions, pins and policies. FailedPrecondition: groups use it."""
        self._forget().run()

    async def forget_async(self) -> None:
        """As forget, for event loops."""
        await self._forget().run_async()


def _connect(server: Optional[str], run: Optional[str], model: Optional[str], timeout: float) -> tuple:
    server, run, model = (given_or_environment(name, value or None)
                          for name, value in (("server", server), ("run", run), ("model", model)))
    if not server:
        raise ValueError("server is missing: give it to connect, or set TH_SERVER")
    operation = Operation(lib.th_controller_connect_start, encoded(server, "server"), encoded(run, "run"), encoded(model, "model"),
                          nonzero_seconds(timeout), makes="controller")
    return "server=%s run=%s model=%s" % (server, run, model), operation


def connect(server: Optional[str] = None, *, run: Optional[str] = None, model: Optional[str] = None,
            timeout: float = 10) -> Controller:
    """Connects a controller for one model of a run. TH_SERVER, TH_RUN and TH_MODEL stand for what is not given.

    Without run and model it lists all. Raises Unavailable without a server within `timeout` seconds.
    """
    description, operation = _connect(server, run, model, timeout)
    return Controller(operation.run().made, description)


async def connect_async(server: Optional[str] = None, *, run: Optional[str] = None, model: Optional[str] = None,
                        timeout: float = 10) -> Controller:
    """As connect, for event loops."""
    description, operation = _connect(server, run, model, timeout)
    return Controller((await operation.run_async()).made, description)
