"""State dicts by key, in two lines: `put_state_dict` here, `get_state_dict` in another process.

    tensorhub.store.put_state_dict(model.state_dict(), "policy", server="10.0.0.1:7077")      # keep what it returns
    weights = tensorhub.store.get_state_dict("policy", server="10.0.0.1:7077")

A key is a model of the run "store". What is put stays as long as its `Put` is not closed, and must not be written meanwhile.
"""
from __future__ import annotations

import os
import time
import uuid
from typing import Any, Mapping, Optional

from . import _hub
from ._arguments import Version, seconds_left
from ._errors import AlreadyExists

RUN = "store"
_GROUP = "putter"


class Put:
    """What has been put, for as long as it is not closed. A context manager."""

    def __init__(self, hub: _hub.Hub, weights: _hub.Weights, version: _hub.VersionInfo):
        self._hub, self.version = hub, version
        self._weights: Optional[_hub.Weights] = weights  # until it is closed

    def __enter__(self) -> "Put":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Withdraws it: the memory may be written again. Idempotent."""
        weights, self._weights = self._weights, None
        if weights is None:
            return
        try:
            _hub.withdraw(weights)
            weights.unregister()
        finally:
            self._hub.leave()


def put_state_dict(state_dict: Mapping[str, Any], key: str, *, server: Optional[str] = None,
                   version: Optional[Version] = None) -> Put:
    """Offers `state_dict` under `key` to whoever gets it. One process puts a key at a time: AlreadyExists names another."""
    try:
        hub = _hub.join(server, run=RUN, model=key, group=_GROUP)
    except AlreadyExists as error:
        raise AlreadyExists("key %r is put already, by another Put that is not closed: close that one, or take another key (%s)"
                            % (key, error), code_word=error.code_word, rank=error.rank, event=error.event) from None
    weights = hub.register(state_dict)
    weights.publish(uuid.uuid4().hex if version is None else version)
    return Put(hub, weights, weights.await_published())


def get_state_dict(key: str, into: Optional[Mapping[str, Any]] = None, *, server: Optional[str] = None,
                   version: Version = "latest", timeout: float = 600, framework: Optional[str] = None) -> Mapping[str, Any]:
    """The state dict that was put under `key`: into the tensors of `into`, which have the same names, shapes and types, or
    into new ones. Waits for one, `timeout` at most (DeadlineExceeded)."""
    group = "getter-%s-%d-%s" % (os.uname().nodename, os.getpid(), uuid.uuid4().hex[:8])
    end = time.monotonic() + timeout
    with _hub.join(server, run=RUN, model=key, group=group) as hub:
        found = hub.wait_for(version, timeout)
        if into is None:
            receiving = hub.receive(found.selector, timeout=seconds_left(end), framework=framework)
            values = dict(receiving)
            if receiving.result["outcome"] == "not_available":
                raise _gone(found, key, receiving.result["reason"])
            return values
        weights = hub.register(into)
        result = weights.update(found.selector, timeout=seconds_left(end))
        if not result.available:
            raise _gone(found, key, result.reason)
        weights.unregister()
        return into


def _gone(version: _hub.VersionInfo, key: str, reason: str) -> LookupError:
    return LookupError("%s of key %r is not available any more (%s): get it again" % (version.label, key, reason))
