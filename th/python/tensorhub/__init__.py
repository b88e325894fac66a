"""TensorHub moves model weights between RL trainers and rollouts.

A trainer's rank:

    hub = tensorhub.join("10.0.0.1:7077", run="r1", model="qwen3-8b", group="trainer", rank=rank, ranks=8)
    weights = hub.register(model)              # nothing is copied
    with weights.published(step):              # the weights are frozen; rollouts read them
        generate()

A rollout's rank:

    hub = tensorhub.join("10.0.0.1:7077", run="r1", model="qwen3-8b", group="rollout-3", rank=rank, ranks=8)
    weights = hub.register(model)
    result = weights.update("latest")          # straight from whoever holds it
    if result.moved: ...

Errors are exceptions by code, all of them `tensorhub.Error`. Every call that waits answers Ctrl-C at once, and has a twin that
ends in _async. Once a process has joined, all calls of a child that it forks raise FailedPrecondition: fork before the first
join, or start processes by spawn.
"""
from . import _library  # first: it says why the library cannot be loaded
from . import store
from ._controller import Applied, Controller, connect, connect_async
from ._errors import (Aborted, AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, Error, FailedPrecondition, Internal,
                      InvalidArgument, NotFound, OutOfRange, PermissionDenied, ResourceExhausted, Unauthenticated, Unavailable,
                      Unimplemented)
from ._hub import AwaitedForm, Hub, UpdateResult, VersionInfo, Weights, join, join_async
from ._metrics import metrics
from ._receive import Receive, Slice
from ._server import Server, serve

__version__ = "0.1.0"

__all__ = ["Aborted", "AlreadyExists", "Applied", "AwaitedForm", "Cancelled", "Controller", "DataLoss", "DeadlineExceeded",
           "Error", "FailedPrecondition", "Hub", "Internal", "InvalidArgument", "NotFound", "OutOfRange", "PermissionDenied", "Receive",
           "ResourceExhausted", "Server", "Slice", "Unauthenticated", "Unavailable", "Unimplemented", "UpdateResult",
           "VersionInfo", "Weights", "connect", "connect_async", "join", "join_async", "metrics", "serve", "store"]
