"""interrupts_deferred(): a Ctrl-C waits while ``.grad`` is changed, which happens whole or not."""

from __future__ import annotations

import threading
import warnings

# Without the enums that ``signal.signal`` makes of what it gets and gives: in each backward, they
# would take ten times as long as all the rest.
from _signal import SIGINT  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Let a Ctrl-C wait until the block is over (it only ever reaches the main thread)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[Any] = []
    before = set_handler(SIGINT, lambda *args: arrived.append(args))
    try:
        yield
    finally:
        set_handler(SIGINT, before)
    if arrived and callable(before):
        before(*arrived[0])
    elif arrived:
        warnings.warn("an interrupt arrived while gradients were committed", stacklevel=2)
