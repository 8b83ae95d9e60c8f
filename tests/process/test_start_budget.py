"""How many worker processes may die before one is ready: real processes that never become ready."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpgrad.base import interpreter
from mpgrad.coordinator.supervisor import (
    FAILED_STARTS_MAX,
    KILLED_STARTS_MAX,
    Supervisor,
    WorkerProcess,
)
from mpgrad.coordinator.worker_processes import WorkerSpawner
from mpgrad.scheduler.events import WorkerUnavailable
from mpgrad.shm.status_board import StatusBoard
from mpgrad.wire.endpoint import Endpoint
from mpgrad.wire.setup import CoordinatorSetup

pytestmark = pytest.mark.process


@pytest.fixture
def supervisor_of(tmp_path: Path) -> Iterator[Callable[[str], Supervisor]]:
    """A supervisor whose workers are a shell script; its workers are gone after the test."""
    made: list[Supervisor] = []

    def make(script: str) -> Supervisor:
        path = tmp_path / "worker"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)
        setup = CoordinatorSetup(
            endpoint=Endpoint("", b""), client_pid=os.getpid(), cpu_workers=1, shm_limit=1,
            client_arena_fd=0, engine_arena_fd=0, worker_environment=b"", blas_threads=1,
            executable=os.fsencode(path), origin=interpreter.origin(),
        )  # fmt: skip
        board = StatusBoard.create()
        made.append(Supervisor(1, (), board, WorkerSpawner(setup, board)))
        return made[-1]

    yield make
    while made:
        made.pop().stop_all()


def kill(supervisor: Supervisor, worker: WorkerProcess) -> int | WorkerUnavailable:
    worker.child.kill()
    outcome = supervisor.reap(worker.child.pidfd)
    assert isinstance(outcome, int | WorkerUnavailable)
    return outcome


WAITS = "exec sleep 1000"


def test_all_workers_killed_while_they_start(supervisor_of: Callable[[str], Supervisor]) -> None:
    """One incident, however many it strikes, is no reason to give up."""
    supervisor = supervisor_of(WAITS)
    slots = list(range(KILLED_STARTS_MAX + 1))
    workers = [supervisor.start(slot) for slot in slots]
    assert [kill(supervisor, worker) for worker in workers] == slots


def test_one_slot_killed_again_and_again(supervisor_of: Callable[[str], Supervisor]) -> None:
    supervisor = supervisor_of(WAITS)
    other = supervisor.start(1)
    for number in range(2 * KILLED_STARTS_MAX - 2):
        if number == KILLED_STARTS_MAX - 1:
            supervisor.joined(other.peer)  # somebody got ready: there is hope
        assert kill(supervisor, supervisor.start(0)) == 0
    outcome = kill(supervisor, supervisor.start(0))
    assert isinstance(outcome, WorkerUnavailable)
    for words in ("before they are ready", "worker w0.", "(pid ", "SIGKILL"):
        assert words in outcome.reason


def test_workers_that_fail_by_themselves(supervisor_of: Callable[[str], Supervisor]) -> None:
    """Another slot would do no better."""
    supervisor = supervisor_of("exit 7")
    workers = [supervisor.start(slot) for slot in range(FAILED_STARTS_MAX)]
    for worker in workers[:-1]:
        assert supervisor.reap(worker.child.pidfd) == worker.slot
    outcome = supervisor.reap(workers[-1].child.pidfd)
    assert isinstance(outcome, WorkerUnavailable)
    assert "status 7" in outcome.reason
