"""The worker processes of a loader, in the user's process: which worker makes which batch."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from typing import Any, NoReturn

import numpy as np

from mpgrad.data.fetching import END
from mpgrad.data.loader_worker import ALIGNMENT, EXHAUSTED, Failure, LoaderWork, main
from mpgrad.recording.tensors import storage

#: Seconds that workers have to finish before they are killed.
PATIENCE_S = 5.0

#: This process's ends of the connections and lifelines of all workers that live.
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _close_in_child() -> None:
    """A fork has these ends, too: as long as it had them, workers would outlive their process."""
    for connection in _connections:
        connection.close()


os.register_at_fork(after_in_child=_close_in_child)


class WorkerPool:
    """Workers that make the batches of one pass after another.

    Args:
        work: what all workers get.
        prefetch: batches that each worker makes in advance.
        timeout_s: how long to wait for a batch; 0: for ever.
        context: of ``multiprocessing``, or the name of its start method; None: "fork".

    Raises:
        RuntimeError: this system has no anonymous shared memory.
    """

    def __init__(
        self, work: LoaderWork, prefetch: int, timeout_s: float, context: Any = None
    ) -> None:
        if sys.platform != "linux":
            raise RuntimeError("DataLoader(num_workers=...) needs Linux; use num_workers=0 here")
        if not hasattr(context, "Process"):
            context = multiprocessing.get_context(context or "fork")
        self._prefetch, self._timeout_s = prefetch, timeout_s
        self._processes: list[Any] = []
        self._ends: list[Connection] = []
        #: While such an end is open, the worker lives. Only this process has them.
        self._lifelines: list[Connection] = []
        self._pid = os.getpid()
        #: The workers that owe a batch, in the order of the batches.
        self._asked: deque[int] = deque()
        self._pass = 0
        #: Whether all messages are whole, and each one that is due is in ``_asked``: an exception
        #: (Ctrl-C) may come in between, and later batches could be taken for others then.
        self._is_in_step = True
        # Ends the running workers when the loader is freed, or at exit.
        self._end = weakref.finalize(
            self, _end, self._processes, self._ends, self._lifelines, self._pid
        )
        for number in range(work.num_workers):
            self._start(context, work, number)

    def _start(self, context: Any, work: LoaderWork, number: int) -> None:
        ours, theirs = context.Pipe(duplex=True)
        lifeline, held = context.Pipe(duplex=False)
        self._ends.append(ours)
        self._lifelines.append(held)
        _connections.update((ours, held))
        process = context.Process(
            target=main,
            args=(work, number, theirs, lifeline),
            name=f"DataLoader worker {number}",
            daemon=True,
        )
        try:
            process.start()
        finally:
            theirs.close()
            lifeline.close()
        self._processes.append(process)

    @property
    def may_go_on(self) -> bool:
        """Whether it is in step, and this process's: not that of one of which this is a fork."""
        return self._pid == os.getpid() and self._is_in_step

    def close(self) -> None:
        """End all workers and their pass; a second call does nothing."""
        self._asked.clear()
        self._is_in_step = False
        self._end()

    def batches(self, indices: Iterator[Any], seed: int) -> Callable[[], Any]:
        """Begin a pass; return what gives its batches one by one, in the order of ``indices``.

        Args:
            indices: what to ask for, batch by batch.
            seed: that the workers' random numbers start from.

        Returns:
            A function that returns ``END`` after the last batch, and raises:

            * RuntimeError: a worker died, or took longer than allowed, or another pass began;
            * an exception of a worker, with its traceback in the text; the batches after that one
              come all the same.
        """
        self._is_in_step = False
        while self._asked:  # by a pass that was broken off
            self._received(self._asked.popleft())
        for number in range(len(self._ends)):
            self._ask(number, ("epoch", seed))
        self._pass += 1
        # Workers take turns. One that has no more samples drops out.
        turns = deque(range(len(self._ends)))
        for _ in range(self._prefetch * len(self._ends)):
            self._ask_next(indices, turns)
        self._is_in_step = True
        return partial(self._next, indices, turns, self._pass)

    def _next(self, indices: Iterator[Any], turns: deque[int], current: int) -> Any:
        if self._pass != current:
            raise RuntimeError(
                "this pass over the DataLoader ended when another one began: its workers are "
                "persistent; use persistent_workers=False for two passes at once"
            )
        if self._asked and not self._is_in_step:
            raise RuntimeError(
                "this pass over the DataLoader was interrupted while it received a batch; begin "
                "another one"
            )
        while self._asked:
            self._is_in_step = False
            number = self._asked.popleft()
            batch = self._received(number)
            if batch is not EXHAUSTED:
                self._ask_next(indices, turns)
            elif number in turns:
                turns.remove(number)
            self._is_in_step = True
            if batch is EXHAUSTED:
                continue
            if isinstance(batch, Failure):
                _raise(batch, number)
            return batch[0]
        return END

    def _ask_next(self, indices: Iterator[Any], turns: deque[int]) -> None:
        if turns and (wanted := next(indices, END)) is not END:
            self._ask(turns[0], ("batch", wanted))
            self._asked.append(turns[0])
            turns.rotate(-1)

    # ------------------------------------------------------------------ one worker

    def _ask(self, number: int, message: tuple[str, Any]) -> None:
        # Of one that has died earlier batches may be there; its death shows when they are taken.
        with contextlib.suppress(ConnectionError):
            self._ends[number].send(message)

    def _received(self, number: int) -> Any:
        """A batch, as a tuple of it alone; a Failure; or EXHAUSTED."""
        process, end = self._processes[number], self._ends[number]
        ready = wait([end, process.sentinel], self._timeout_s or None)
        if not ready:
            pid = process.pid
            process.kill()
            self.close()
            raise RuntimeError(
                f"DataLoader timed out after {self._timeout_s} seconds: worker {number} (pid "
                f"{pid}) has not finished its batch, and was killed"
            )
        try:
            # Messages that it sent before its death are still there.
            sizes = end.recv() if end.poll() else self._died(number)
            return EXHAUSTED if sizes is EXHAUSTED else _read(recv_handle(end), sizes)
        except (EOFError, ConnectionError):
            self._died(number)

    def _died(self, number: int) -> NoReturn:
        process = self._processes[number]
        process.join(PATIENCE_S)
        code, pid = process.exitcode, process.pid
        if code is not None and code < 0:
            how = f"was killed by signal {signal.Signals(-code).name}"
            hint = " Was memory short?" if code == -signal.SIGKILL else ""
        else:
            how, hint = f"exited unexpectedly with exit code {code}", ""
        self.close()
        raise RuntimeError(f"DataLoader worker {number} (pid {pid}) {how}.{hint}")


def _raise(failure: Failure, number: int) -> NoReturn:
    text = (
        f"Caught {failure.kind.__name__} in DataLoader worker {number}.\nOriginal {failure.trace}"
    )
    try:
        error = failure.kind(text)
    except Exception:  # it takes other arguments
        error = RuntimeError(text)
    if isinstance(error, KeyError):
        error = KeyError(_Verbatim(text))
    raise error


class _Verbatim(str):
    """A text that KeyError shows unchanged, including its line breaks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _read(descriptor: int, sizes: list[int]) -> Any:
    """The batch of a worker, with arrays in this process's memory."""
    try:
        with mmap.mmap(descriptor, 0) as memory:
            shared = np.frombuffer(memory, np.uint8)
            parts, begin = [], 0
            for size in sizes:
                part = storage.empty((size,), np.uint8)
                part[:] = shared[begin : begin + size]
                parts.append(part)
                begin += size + -size % ALIGNMENT
            del shared  # else the memory could not be unmapped
    finally:
        os.close(descriptor)
    batch = pickle.loads(parts[0], buffers=parts[1:])
    return batch if isinstance(batch, Failure) else (batch,)


def _end(
    processes: list[Any], ends: list[Connection], lifelines: list[Connection], owner: int
) -> None:
    """End the workers: idle ones at once, busy ones after their batch."""
    if os.getpid() != owner:
        return  # a fork; its parent needs them
    for end in ends:
        with contextlib.suppress(OSError):
            end.send(None)
        end.close()
    deadline = time.monotonic() + PATIENCE_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode is None:
            process.kill()
            process.join()
        process.close()
    for lifeline in lifelines:
        lifeline.close()
