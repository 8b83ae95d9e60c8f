"""describe_exit(): how a child process ended, in words for an error message."""

from __future__ import annotations

import signal


def describe_exit(status: int) -> str:
    """``status`` as ``subprocess`` gives it: a negative one is a signal's number."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}"
