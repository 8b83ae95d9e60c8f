"""The threads of BLAS: the same number wherever a rule runs, and no core for those that are idle.

Some matrix products have other bits with two OpenBLAS threads than with one, so ``local`` uses the
workers' number. The limit belongs to the process: overlapping limiters that each restore the
earlier number would undo each other, so one counter serves all threads.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from threadpoolctl import ThreadpoolController

#: Re-entrant: a handler of a signal may run a backward while its thread is inside.
_lock = threading.RLock()
#: How many limits each thread holds.
_holders: dict[int, int] = {}
#: Whether all libraries are limited.
_is_limited = False
_functions: list[tuple[Callable[[], int], Callable[[int], object]]] = []
#: The number of modules when the libraries were last searched: SciPy brings one of its own.
_modules = 0
#: What limits a library that is limited, and its number of threads before.
_before: list[tuple[Callable[[int], object], int]] = []


class blas_limit:
    """Limit BLAS to ``threads`` threads in this process while any holder is inside."""

    __slots__ = ("_thread", "_threads")

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def __enter__(self) -> None:
        global _is_limited
        self._thread = threading.get_ident()
        with _lock:
            found = () if _is_limited else _libraries()
            _holders[self._thread] = _holders.get(self._thread, 0) + 1
            try:
                for threads_of, limit in found:
                    count = threads_of()
                    if count != self._threads:
                        _before.append((limit, count))
                        limit(self._threads)
            except BaseException:  # such as that of a handler
                self.__exit__()
                raise
            _is_limited = True

    def __exit__(self, *exc: object) -> None:
        with _lock:
            left = _holders[self._thread] - 1
            if left:
                _holders[self._thread] = left
            else:
                del _holders[self._thread]
            if not _holders:
                _restore()


def blas_of_arrays() -> tuple[str, int]:
    """The BLAS library that multiplies arrays here, with its kernels; how many threads it uses."""
    found = ThreadpoolController().select(user_api="blas").info()
    # SciPy, where it is loaded, has one of its own.
    for library in sorted(found, key=lambda library: "scipy.libs" in library["filepath"]):
        kernels = library.get("architecture") or ""
        name = f"{library['internal_api']} {library['version']} {kernels}".rstrip()
        return name, library["num_threads"]
    return "unknown", 1


def _libraries() -> list[tuple[Callable[[], int], Callable[[int], object]]]:
    """For each BLAS library of this process what gives its number of threads, and what sets it.
    The search takes milliseconds: only after imports.

    The list does not change while they are limited, so that each gets its own number back.
    """
    global _functions, _modules
    if not _holders and len(sys.modules) != _modules:
        found = ThreadpoolController().select(user_api="blas")
        _functions, _modules = list(map(_functions_of, found.lib_controllers)), len(sys.modules)
    return _functions


def _functions_of(library: Any) -> tuple[Callable[[], int], Callable[[int], object]]:
    # From 3.8 on threadpoolctl obeys only the first thread that ever set a limit. This is what it
    # calls then: one counter acts for all threads.
    limit = getattr(library, "_real_set_num_threads", library.set_num_threads)
    if library.internal_api == "openblas" and library.threading_layer != "openmp":
        # The library's own functions: looking their names up takes longer than they do.
        symbol = getattr(library, "_get_symbol", lambda name: None)
        threads_of, own_limit = map(
            symbol, ("openblas_get_num_threads", "openblas_set_num_threads")
        )
        if threads_of is not None and own_limit is not None:
            return threads_of, own_limit
    return library.get_num_threads, limit


def _restore() -> None:
    global _is_limited
    _is_limited = False
    while _before:
        limit, count = _before.pop()
        limit(count)


def _leave_others_in_child() -> None:
    """In the child only the thread that forked exists, and no thread holds the lock."""
    global _lock
    _lock = threading.RLock()
    thread, was_limited = threading.get_ident(), bool(_holders)
    own = _holders.get(thread, 0)
    _holders.clear()
    if own:
        _holders[thread] = own
    elif was_limited:
        _restore()


os.register_at_fork(after_in_child=_leave_others_in_child)


# ---------------------------------------------------------------------- idle threads

# OpenBLAS's idle threads spin for 2^26 cycles, tens of milliseconds, before they sleep. The forward
# pass runs products on several threads, and so the backward that follows would share its cores with
# threads that do nothing (docs/decisions/executor.md has the cost). OpenBLAS reads
# OPENBLAS_THREAD_TIMEOUT when it is loaded, and ``mpgrad/__init__`` sets it if NumPy is not loaded
# yet. If NumPy was imported first, OpenBLAS is made to read it again here.

#: Idle threads sleep after 2^18 cycles.
TIMEOUT = "18"
_VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
#: Exported by the OpenBLAS of wheels up to NumPy 2.4, hidden in later ones: one reads the
#: environment again, one ends the threads, which the next product starts again (as it does after
#: every fork).
_READ, _END = "openblas_read_env", "blas_thread_shutdown_"
#: A thread whose innermost Python frame is in this module waits, so it is not inside BLAS.
_WAITING = ("asyncio", "concurrent", "queue", "selectors", "socket", "threading", "zmq")

_is_done = False


def let_idle_threads_sleep() -> None:
    """Let OpenBLAS's idle threads give their cores back.

    Does nothing if the user has set the variable, or a thread may be in BLAS.
    """
    global _is_done
    with _lock:
        if _is_done:
            return
        if _VARIABLE in os.environ:
            _is_done = True
            return
        found = ThreadpoolController().select(internal_api="openblas").lib_controllers
        # PyDLL keeps the GIL: no Python thread can enter BLAS between the check and the calls.
        libraries = [ctypes.PyDLL(library.filepath) for library in found]
        if not _others_wait():
            return
        os.environ[_VARIABLE] = TIMEOUT
        for library in libraries:
            if reads_again(library):
                getattr(library, _READ)()
                getattr(library, _END)()
        _is_done = True


def reads_again(library: ctypes.CDLL) -> bool:
    """Whether this OpenBLAS can read its environment again after it was loaded."""
    return hasattr(library, _READ) and hasattr(library, _END)


def _others_wait() -> bool:
    """Whether every other thread is known to wait."""
    own = threading.get_ident()
    return all(
        frame.f_globals.get("__name__", "").partition(".")[0] in _WAITING
        for thread, frame in sys._current_frames().items()
        if thread != own
    )
