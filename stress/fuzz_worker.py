"""Hostile tasks for a worker, which must run or refuse each of them.

``python -m stress.fuzz_worker FRAMES SEED`` is a separate process, because a handle that leads out
of its arena would end it. It is worker, coordinator and client in one, without their sockets: the
real core dispatches the tasks of real backwards, and the real TaskRunner runs them. Before each
task it gets wrong copies of it, with errors in the frame or in the program.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import subprocess
import sys
from typing import Any

import numpy as np

import mpgrad as mg
from mpgrad.autograd.frozen_graphs import costs
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.autograd.running import engine_slot
from mpgrad.base.exits import describe_exit
from mpgrad.base.handles import Block
from mpgrad.engine.client_worker import ClientWorker
from mpgrad.engine.graph_submission import GraphSubmission
from mpgrad.engine.placement import Placed
from mpgrad.engine.preparation import PreparedGraph
from mpgrad.errors import ProtocolError
from mpgrad.recording.tensors.tensor import gradient_edge
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.coordinator_state import CoordinatorState
from mpgrad.scheduler.plan import plan
from mpgrad.shm.arena import client_arena
from mpgrad.shm.backing import Backing
from mpgrad.shm.free_list import FreeList
from mpgrad.shm.mapped_arena import ForeignArena
from mpgrad.shm.segment import Segment
from mpgrad.wire.schema import TO_WORKER, decode, encode
from mpgrad.workers.task import TaskRunner
from mpgrad.workers.worker_memory import WorkerMemory
from stress.fuzz_core import Tally
from stress.hostile_frames import HostileFrames

#: The bytes that this process may map beside its arenas: a wrong shape must not fill the machine.
MAPPED_BYTES_MAX = 2 << 30
ARENA_BYTES = 1 << 28
#: The number of wrong copies of each task.
COPIES = 40
WORKER, SESSION = "w0.1", "c1.0"


class WorkerStage:
    """The parts of one worker process, and a dispatcher of tasks."""

    def __init__(self, chance: random.Random, frames: int) -> None:
        self._chance, self._frames = chance, frames
        self._engine = Segment.create(ARENA_BYTES, "fuzz")
        self._memory = WorkerMemory(os.dup(client_arena().segment.fd), os.dup(self._engine.fd))
        self._runner = TaskRunner(self._memory, "the fuzzed worker", lambda progress: None, 0)
        self._arena = ForeignArena(os.dup(self._engine.fd), "engine arena")
        self._graphs = 0
        self.sent = self.refused = 0

    def backward(self, loss: mg.Tensor, leaf: mg.Tensor, *, attack: bool) -> np.ndarray[Any, Any]:
        """The gradient of ``leaf``, from a new coordinator.

        Args:
            loss, leaf: the graph.
            attack: whether wrong tasks come before each right one.
        """
        seed = np.ones((), loss.dtype)
        frozen = freeze([gradient_edge(loss)], [seed], keep_graph=True, cost=costs.estimate)
        # Without fusion, many gradients go through blocks.
        is_fused = self._chance.random() < 0.5
        prepared = PreparedGraph(frozen.spec, plan(frozen.spec, workers=2, fuse=is_fused))
        submission = GraphSubmission(frozen, prepared, {})
        placed = Placed(frozen, {}, {}, {})
        client = ClientWorker(placed, prepared, submission, self._arena, contextlib.nullcontext, 1)
        ahead = client.run_ahead()
        self._graphs += 1
        messages = [*submission.messages(SESSION, self._graphs, 0, 2, ahead)]
        return self._play(messages, frozen, leaf, attack=attack)

    def _play(
        self, events: list[Any], frozen: FrozenGraph, leaf: mg.Tensor, *, attack: bool
    ) -> np.ndarray[Any, Any]:
        free = FreeList(self._engine.nbytes, ARENA_BYTES, "fuzz")
        state = CoordinatorState(Backing(self._engine, free, map_here=False))
        todo = [ev.SessionOpened(SESSION), ev.WorkerJoined(WORKER), *events]
        while todo:
            for instruction in state.handle_event(todo.pop(0)):
                if isinstance(instruction, do.DispatchNodeTask):
                    if attack:
                        self._attack(instruction)
                    reply, released = self._runner.run(instruction)
                    todo += [ev.BlocksReleased(WORKER, released)] if released else []
                    todo.append(reply)
                elif isinstance(instruction, do.CompleteGraph):
                    return self._gradient(instruction, frozen, leaf)
                elif not isinstance(instruction, do.CancelGraph):
                    raise AssertionError(f"an honest backward ends with {instruction}")
        raise AssertionError("an honest backward does not end")

    def _gradient(
        self, end: do.CompleteGraph, frozen: FrozenGraph, leaf: mg.Tensor
    ) -> np.ndarray[Any, Any]:
        [ref] = end.captures
        if isinstance(ref, Block):
            return self._arena.open(ref, leaf.shape, leaf.dtype, writeable=False).copy()
        return np.frombuffer(ref or b"", leaf.dtype).reshape(leaf.shape)

    # ------------------------------------------------------------------ attacks

    def _attack(self, task: do.DispatchNodeTask) -> None:
        """Send wrong copies of ``task``; each must get a reply."""
        hostile = HostileFrames(self._chance, [encode(task)])
        for _ in range(min(COPIES, self._frames - self.sent)):
            self.sent += 1
            try:
                if self._chance.random() < 0.5:
                    wrong = decode(hostile.next(), TO_WORKER)
                else:
                    wrong = self._with_wrong_program(task)
            except ProtocolError:
                self.refused += 1
                continue
            if isinstance(wrong, do.DispatchNodeTask):
                reply, _ = self._runner.run(wrong)
                self.refused += isinstance(reply, ev.NodeTaskFailed)
                encode(reply)

    def _with_wrong_program(self, task: do.DispatchNodeTask) -> do.DispatchNodeTask:
        """The same task with a changed program."""
        program = bytearray(task.program or self._memory.read_bytes(*task.payload))
        for _ in range(self._chance.randint(1, 3)):
            at = self._chance.randrange(len(program))
            program[at] = self._chance.choice((0, 1, 127, 255, program[at] ^ 1 << at % 8))
        if task.program and self._chance.random() < 0.5:
            return task._replace(program=bytes(program))
        stored = client_arena().empty((len(program),), np.uint8)
        stored[:] = program
        place = client_arena().locate(stored)
        assert place is not None
        self._stored = stored  # alive until the next one
        return task._replace(payload=(place[0], len(program)), program=b"")


def graph(values: np.random.Generator) -> tuple[mg.Tensor, mg.Tensor]:
    """A loss of operators of all kinds, and the leaf that it depends on."""
    leaf = mg.tensor(values.normal(size=(40, 50)).astype(np.float32), requires_grad=True)
    weight = mg.tensor(values.normal(size=(50, 30)).astype(np.float32))
    hidden = mg.tanh(leaf @ weight)
    parts = [
        mg.softmax(hidden, 1),
        hidden.t().reshape(30, 40).t()[:, ::2].exp().sum(1, keepdim=True).expand(40, 30),
        mg.cat([hidden[:20] * 2, mg.relu(hidden[20:]) ** 2]),
        mg.where(hidden > 0, hidden, hidden.cumsum(0)),
    ]
    return mg.stack([(part * part).mean() for part in parts]).sum(), leaf


def fuzz_worker(frames: int, seed: int) -> Tally:
    """Give a worker ``frames`` wrong tasks, in a separate process.

    Raises:
        AssertionError: the worker died, or a later honest backward was wrong.
    """
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "stress.fuzz_worker", str(frames), str(seed)],
        capture_output=True,
        text=True,
        check=False,
    )
    said = (ended.stderr.splitlines() or [""])[-1]
    assert ended.returncode == 0, f"the fuzzed worker {describe_exit(ended.returncode)}: {said}"
    return Tally(*map(int, ended.stdout.split()))


def _main(frames: int, seed: int) -> Tally:
    engine_slot.is_worker = True
    stage = WorkerStage(random.Random(seed), frames)
    _limit_memory()
    backwards = 0
    with mg.Engine("local"):
        loss, leaf = graph(np.random.default_rng(1))
        loss.backward()
        assert leaf.grad is not None
        expected = leaf.grad.numpy().tobytes()
    while stage.sent < frames or not backwards:
        attacked = graph(np.random.default_rng(1))
        # A wrong task may have changed memory that the right ones read.
        with contextlib.suppress(AssertionError):
            stage.backward(*attacked, attack=True)
        # It must not damage data that are kept between tasks (decoded programs, open blocks).
        fresh = graph(np.random.default_rng(1))
        found = stage.backward(*fresh, attack=False)
        assert found.tobytes() == expected, "a wrong gradient after hostile tasks"
        backwards += 1
    return Tally(stage.sent, stage.refused, backwards)


def _limit_memory() -> None:
    """Limit the memory that this process may map from now on."""
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MAPPED_BYTES_MAX,) * 2)


if __name__ == "__main__":
    print(*_main(int(sys.argv[1]), int(sys.argv[2])))
