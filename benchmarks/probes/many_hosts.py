"""What an item on 4, 64 and 256 hosts (or as given) costs the client, whose thread deals all calls.

    python -m benchmarks.probes.many_hosts [HOSTS ...]

The client is the real one. Each host has two workers and answers at once with what a real one has
answered to the first item: so the client alone is measured, without Ray. Its processor time counts.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

import mpgrad as mg
from mpgrad.engine import engine as engines
from mpgrad.engine.cluster.host_actor import HostActor, HostOptions, arithmetic, versions
from mpgrad.engine.cluster.host_calls import HostCalls
from mpgrad.engine.cluster.host_contract import Greeting, RemoteHost, Reply
from mpgrad.engine.cluster.host_starts import HostStarts
from mpgrad.engine.cluster.host_tasks import HostTask

WORKERS, ITEMS_OF_A_WORKER, ROUNDS = 2, 8, 3
_tasks = msgspec.msgpack.Decoder(HostTask)


class Answers:
    """What a real host has answered, by the kind of call."""

    def __init__(self) -> None:
        options = {"shm_limit": None, "blas_threads": 1, "task_timeout_s": None, "pin": "none"}
        self._actor = HostActor(HostOptions(1, options, b"", (), {}), 1)
        self._actor.greet()
        self._known: dict[str, Reply] = {}
        self.messages = 0

    def to(self, task: bytes, data: Sequence[Any], stored: Sequence[Any]) -> list[Reply]:
        """The answers to a task."""
        self.messages += 1
        kinds = [type(one.rule).__name__ for one in _tasks.decode(task).calls]
        if not {*kinds} <= self._known.keys():
            self._known.update(zip(kinds, self._actor.run(task, data, *stored), strict=True))
        return [self._known[kind] for kind in kinds]


class SimulatedHost:
    """A host that answers at once."""

    def __init__(self, number: int, answers: Answers) -> None:
        self.name = self.node = str(number)
        self._answers = answers

    def greet(self, end: Callable[[Callable[[], Greeting]], None]) -> None:
        end(lambda: Greeting(WORKERS, versions(), arithmetic()))

    def run(
        self,
        task: bytes,
        data: Sequence[Any],
        stored: Sequence[Any],
        end: Callable[[Callable[[], list[Reply]]], None],
    ) -> None:
        found = self._answers.to(task, data, stored)
        end(lambda: found)

    def ask(self, end: Callable[[Callable[[], None]], None]) -> None:
        end(lambda: None)

    def stop(self, number: int, grace_ms: int | None) -> None:
        """Nothing runs."""

    def kill(self, pause_s: float = 0.0) -> None:
        """Nothing has started."""


class SimulatedCluster:
    """So many of them."""

    def __init__(self, count: int, answers: Answers) -> None:
        self._hosts: list[RemoteHost] = [SimulatedHost(n, answers) for n in range(count)]

    def new_hosts(self, most: int | None) -> list[RemoteHost]:
        found, self._hosts = self._hosts, []
        return found

    def ask_for(self, hosts: int | None) -> None:
        """There are no more."""

    def store(self, data: Any) -> Any:
        return data

    def is_loss(self, error: BaseException) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open."""


def loss_of(x: mg.Tensor, w: mg.Tensor) -> mg.Tensor:
    return (x * w).sum()


def step(items: int) -> tuple[float, float]:
    """The processor seconds of both passes of a map."""
    w = mg.ones(8, 8).requires_grad_()
    xs = [mg.ones(8, 8).requires_grad_() for _ in range(items)]
    begun = time.process_time()
    losses = mg.parallel_map(loss_of, xs, shared=(w,))
    between = time.process_time()
    sum(losses).backward()
    return between - begun, time.process_time() - between


def main() -> None:
    print(f"{'hosts':>6}{'items':>7}{'forward':>12}{'backward':>12}{'items/s':>9}{'messages':>10}")
    mine = Greeting(0, versions(), arithmetic())
    for count in map(int, sys.argv[1:] or (4, 64, 256)):
        answers = Answers()
        hosts = HostCalls(SimulatedCluster(count, answers), HostStarts(mine, False))
        hosts.start()
        engines._hosts = lambda options, hosts=hosts: hosts  # type: ignore[misc]
        items = count * WORKERS * ITEMS_OF_A_WORKER
        with mg.Engine("process", cluster="simulated"):
            step(1)
            step(items)
            before = answers.messages
            found = [step(items) for _ in range(ROUNDS)]
            messages = (answers.messages - before) / ROUNDS
        forward, backward = [
            1e6 * statistics.median(one) / items for one in zip(*found, strict=True)
        ]
        print(
            f"{count:6}{items:7}{forward:9.0f} us{backward:9.0f} us"
            f"{1e6 / (forward + backward):9.0f}{messages:10.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
