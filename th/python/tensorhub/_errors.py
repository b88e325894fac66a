"""The exceptions of tensorhub, one for each code of the library."""
from __future__ import annotations

from . import _library
from ._library import byref, lib


class Error(Exception):
    """A call that has failed. The text says what happened, to whom, and what to do.

    Attributes:
      code: the canonical code's name, "NOT_FOUND".
      code_word: the stable word that the text begins with, "UPDATE_STALLED", or ""; docs/errors.md has them all.
      rank: the rank that it is about, "rollout-3/1", or "".
      event: the operation's name, as in `th events`, or "".
    """
    code = "UNKNOWN"

    def __init__(self, text: str, *, code_word: str = "", rank: str = "", event: str = ""):
        super().__init__(text)
        self.code_word, self.rank, self.event = code_word, rank, event


class Cancelled(Error):
    """This client has left, or somebody has cancelled the call."""
    code = "CANCELLED"


class InvalidArgument(Error, ValueError):
    """An argument cannot be meant; the text names it."""
    code = "INVALID_ARGUMENT"


class DeadlineExceeded(Error, TimeoutError):
    """The call's time was over."""
    code = "DEADLINE_EXCEEDED"


class NotFound(Error, LookupError):
    """No such version, tensor, rank or pin."""
    code = "NOT_FOUND"


class AlreadyExists(Error):
    """Another live worker holds the rank, or somebody holds other content under the label."""
    code = "ALREADY_EXISTS"


class PermissionDenied(Error):
    """The peer does not let this client."""
    code = "PERMISSION_DENIED"


class ResourceExhausted(Error):
    """A limit has been reached; the text names it."""
    code = "RESOURCE_EXHAUSTED"


class FailedPrecondition(Error):
    """A verb in the wrong state, or a call in a forked child."""
    code = "FAILED_PRECONDITION"


class Aborted(Error):
    """The rank was replaced, a version withdrawn, or another rank of the group has failed."""
    code = "ABORTED"


class OutOfRange(Error, IndexError):
    """An index is not there."""
    code = "OUT_OF_RANGE"


class Unimplemented(Error, NotImplementedError):
    """An option that this version of the library does not have."""
    code = "UNIMPLEMENTED"


class Internal(Error):
    """A defect of TensorHub, or of a peer that answers what it must not."""
    code = "INTERNAL"


class Unavailable(Error, ConnectionError):
    """There is no server, or it has not recovered yet."""
    code = "UNAVAILABLE"


class DataLoss(Error):
    """Bytes do not match their checksums."""
    code = "DATA_LOSS"


class Unauthenticated(Error):
    """The credentials were refused."""
    code = "UNAUTHENTICATED"


_BY_CODE = {kind.code: kind for kind in Error.__subclasses__()}


def error_of(fields: _library.Error) -> Error:
    """The exception that `fields` describe."""
    name = lib.th_status_name(fields.code).decode()
    kind = _BY_CODE.get(name, Error)
    parts = [(getattr(fields, part) or b"").decode(errors="replace") for part in ("text", "word", "rank", "event")]
    return kind(parts[0] or name, code_word=parts[1], rank=parts[2], event=parts[3])


def check(status: int) -> None:
    """Raises what the last call of this thread has failed with, unless `status` is OK."""
    if status == _library.OK:
        return
    fields = _library.Error()
    lib.th_last_error_fields(byref(fields))
    raise error_of(fields)
