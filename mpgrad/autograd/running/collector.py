"""collector_held: pauses Python's cyclic garbage collector while the engine uses its own tables.

A backward of many Nodes makes hundreds of thousands of objects and no cycle. Otherwise the
collector would walk the whole recorded graph several times.
"""

from __future__ import annotations

import gc
import os
import threading
from contextlib import AbstractContextManager, ContextDecorator, nullcontext

#: The number of Nodes or gradients from which on the collector is held.
HELD_ABOVE = 1000

_nothing: AbstractContextManager[object] = nullcontext()
#: Re-entrant: a handler of a signal may run a backward while its thread is inside.
_lock = threading.RLock()
_holders = 0
_was_enabled = False


class collector_held(ContextDecorator):
    """No collection while any thread is inside; not for user code, which may need one.

    If the user has switched the collector off, it stays off.
    """

    def __enter__(self) -> None:
        global _holders, _was_enabled
        with _lock:
            _holders += 1
            if _holders == 1:
                _was_enabled = gc.isenabled()
                try:
                    gc.disable()
                except BaseException:  # that of a handler of a signal
                    self.__exit__()
                    raise

    def __exit__(self, *exc: object) -> None:
        global _holders
        with _lock:
            _holders -= 1
            if _holders == 0 and _was_enabled:
                gc.enable()


def collector_held_for(count: int) -> AbstractContextManager[object]:
    """Hold the collector if there are so many Nodes or gradients that it would run often."""
    return collector_held() if count >= HELD_ABOVE else _nothing


def _start_anew_in_child() -> None:
    # At the fork another thread may have been inside.
    global _lock, _holders
    if _holders and _was_enabled:
        gc.enable()
    _lock, _holders = threading.RLock(), 0


os.register_at_fork(after_in_child=_start_anew_in_child)
