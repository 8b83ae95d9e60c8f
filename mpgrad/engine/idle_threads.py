"""let_idle_threads_sleep(): OpenBLAS's idle threads must give their cores back.

Its idle threads spin for 2^26 cycles, tens of milliseconds, before they sleep. The forward pass
runs products on several threads, and so the backward that follows would share its cores with
threads that do nothing (docs/decisions.md has the cost). OpenBLAS reads
``OPENBLAS_THREAD_TIMEOUT`` when it is loaded, and ``mpgrad/__init__`` sets it if NumPy is not
loaded yet. If NumPy was imported first, this module makes OpenBLAS read it again.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading

from threadpoolctl import ThreadpoolController

#: Idle threads sleep after 2^18 cycles.
TIMEOUT = "18"
_VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
#: Exported by the OpenBLAS of NumPy's and SciPy's wheels: one reads the environment again, one ends
#: the threads, which the next product starts again (as it does after every fork).
_READ, _END = "openblas_read_env", "blas_thread_shutdown_"
#: A thread whose innermost Python frame is in this module waits, so it is not inside BLAS.
_WAITING = ("asyncio", "concurrent", "queue", "selectors", "socket", "threading", "zmq")

_lock = threading.Lock()
_is_done = False


def let_idle_threads_sleep() -> None:
    """See above. Does nothing if the user has set the variable, or a thread may be in BLAS."""
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
            if hasattr(library, _READ) and hasattr(library, _END):
                getattr(library, _READ)()
                getattr(library, _END)()
        _is_done = True


def _others_wait() -> bool:
    """Whether every other thread is known to wait."""
    own = threading.get_ident()
    return all(
        frame.f_globals.get("__name__", "").partition(".")[0] in _WAITING
        for thread, frame in sys._current_frames().items()
        if thread != own
    )


def _forget_lock_in_child() -> None:
    # A thread that does not exist in the child may hold it.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock_in_child)
