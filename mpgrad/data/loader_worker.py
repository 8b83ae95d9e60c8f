"""A loader's worker process: makes the requested batches and hands them over.

A batch travels in anonymous shared memory, of which the user's process gets the descriptor. It has
no name anywhere; the kernel frees it with the last process that holds it.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import random
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any

import numpy as np

from mpgrad.base.accidental_ends import accidental_end
from mpgrad.base.exits import signal_at_end_of_pipe
from mpgrad.base.unnamed_file import unnamed_file
from mpgrad.data.fetching import END, USER_CODE, Collate, fetcher
from mpgrad.ops.generators import manual_seed

#: Buffers in shared memory begin at multiples of this many bytes.
ALIGNMENT = 64
#: Replaces the sizes of a batch if an iterable dataset has no more samples.
EXHAUSTED = None


@dataclass(frozen=True)
class WorkerInfo:
    """The properties of a worker.

    Attributes:
        id: 0 to ``num_workers - 1``.
        num_workers: of this loader.
        seed: that its random numbers were started from.
        dataset: its own copy.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


@dataclass(frozen=True)
class Failure:
    """An exception of a worker, on its way to the user."""

    kind: type[BaseException]
    trace: str


@dataclass(frozen=True)
class LoaderWork:
    """The setup of a worker."""

    dataset: Any
    collate: Collate | None
    batched: bool
    drop_last: bool
    init: Callable[[int], Any] | None
    num_workers: int


class _WorkerProcess:
    info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Which worker of a loader this process is; None in any other process."""
    return _WorkerProcess.info


def main(work: LoaderWork, number: int, connection: Connection, lifeline: Connection) -> None:
    """Serve ``connection`` until its other end is closed or sends None.

    Messages are ``("epoch", seed)``, after which all begins anew, and ``("batch", indices)``.
    """
    # A Ctrl-C is for the user's process, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Busy or stopped, a worker would not see that the user's process has ended.
    signal_at_end_of_pipe(lifeline.fileno(), signal.SIGKILL)
    if lifeline.poll():
        return  # it ended before the kernel knew whom to tell
    with contextlib.suppress(EOFError, ConnectionError):
        _serve(work, number, connection)


def _serve(work: LoaderWork, number: int, connection: Connection) -> None:
    fetch: Callable[[Any], Any] = _no_epoch
    while (message := connection.recv()) is not None:
        kind, content = message
        try:
            if kind == "epoch":
                fetch = _begun(work, number, content)
                continue
            batch = fetch(content)
            if batch is END:
                connection.send(EXHAUSTED)
            else:
                _send(connection, batch)
        except Exception as error:
            # An exception of an epoch is reported with the first batch that cannot be made.
            failure = _failure_of(error)
            if kind == "epoch":
                fetch = _failing(failure)
            else:
                _send(connection, failure)


def _failure_of(error: Exception, remark: str = "") -> Failure:
    kind = type(error)
    if isinstance(error, StopIteration):
        kind, remark = RuntimeError, f"{accidental_end(USER_CODE)}\n{remark}"
    try:
        pickle.dumps(kind)
    except Exception:
        kind = RuntimeError  # the trace names it all the same
    return Failure(kind, traceback.format_exc() + remark)


def _no_epoch(indices: Any) -> Any:
    raise AssertionError("a batch was asked for before an epoch began")


def _failing(failure: Failure) -> Callable[[Any], Any]:
    return lambda indices: failure


def _begun(work: LoaderWork, number: int, base_seed: int) -> Callable[[Any], Any]:
    seed = (base_seed + number) % 2**63
    random.seed(seed)
    manual_seed(seed)
    np.random.seed(np.random.SeedSequence([base_seed, number]).generate_state(4))
    if _WorkerProcess.info is None:
        _WorkerProcess.info = WorkerInfo(number, work.num_workers, seed, work.dataset)
        if work.init is not None:
            work.init(number)
    _WorkerProcess.info = WorkerInfo(number, work.num_workers, seed, work.dataset)
    return fetcher(work.dataset, work.collate, work.batched, work.drop_last)


def _send(connection: Connection, batch: Any) -> None:
    """Write ``batch`` into shared memory, and send the sizes of its parts and the descriptor."""
    buffers: list[pickle.PickleBuffer] = []
    code = io.BytesIO()
    try:
        pickle.Pickler(code, protocol=5, buffer_callback=buffers.append).dump(batch)
    except Exception as error:  # a class that cannot be pickled may raise anything
        failure = _failure_of(error, "A batch has to be pickled on its way out of a worker.")
        buffers.clear()
        code = io.BytesIO(pickle.dumps(failure))
    parts = [code.getbuffer(), *(buffer.raw() for buffer in buffers)]
    descriptor = unnamed_file("mpgrad-batch")
    try:
        for part in parts:
            _write(descriptor, part)
        connection.send([part.nbytes for part in parts])
        send_handle(connection, descriptor, None)  # type: ignore[arg-type]
    finally:
        os.close(descriptor)


def _write(descriptor: int, part: memoryview) -> None:
    written = 0
    while written < part.nbytes:
        written += os.write(descriptor, part[written:])
    padding = -part.nbytes % ALIGNMENT
    os.lseek(descriptor, padding, os.SEEK_CUR)
