"""Waits for what a test or a benchmark awaits; for scripts in Python."""

import time

PATIENCE_S = 60  # a busy machine of two cores takes some seconds to start a program
POLL_S = 0.05


def until(condition, what: str, explain=lambda: "", patience_s: float = PATIENCE_S):
    """The first value of `condition` that is true. AssertionError with `what` and explain() after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(POLL_S)
    raise AssertionError("not within %d s: %s\n%s" % (patience_s, what, explain()))
