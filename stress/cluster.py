"""cluster: what runs on the hosts of a Ray cluster dies at random instants; no bit may change.

Four nodes on this machine serve a training of mpgrad, and one of torch if it is installed. The
promises: both passes have the bits of ``local``, whoever dies; hosts that come back take part; and
nothing is left. A call may end with WorkerLost only if three of its hosts or workers have died.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

import mpgrad as mg
from mpgrad.errors import CoordinatorLost, WorkerLost
from stress.chaos import STEPS
from stress.load import BothPasses
from stress.run import Run, Verdict, count, minutes
from tests.leftovers import named_memory_of, wait_until
from tests.ray.clusters import Nodes, processes_with, two_nodes

NODES = 4
#: How often each kind dies, and seconds between two deaths: a host needs some to come back.
KINDS = {"worker": 4, "coordinator": 2, "actor": 3, "node": 1}
PAUSES_S = (0.02, 2.0)
#: So many deaths during a step may end it.
DEATHS_MAX = 3


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=count, default=20, metavar="N", help="of all kinds")
    parser.add_argument("--seed", type=int, help="of instants and victims; default: drawn")
    parser.add_argument("--minutes", type=minutes, default=10.0, metavar="M", help="at most")


class Killer(threading.Thread):
    """Kills workers or their template, coordinators and actors of hosts, and nodes, which come
    back.

    Args:
        nodes: the cluster.
        chance: chooses the time, the kind and the process.
        kills: how many.
    """

    def __init__(self, nodes: Nodes, chance: random.Random, kills: int) -> None:
        super().__init__(name="killer")
        self._nodes, self._chance, self._kills = nodes, chance, kills
        self._stop_asked = threading.Event()
        self.killed: Counter[str] = Counter()

    def run(self) -> None:
        kinds, weights = zip(*KINDS.items(), strict=True)
        while self.killed.total() < self._kills:
            if self._stop_asked.wait(self._chance.uniform(*PAUSES_S)):
                return
            [kind] = self._chance.choices(kinds, weights)
            if kind == "node":
                self._nodes.order(f"remove {self._chance.randrange(NODES - 1)}")
                self.killed[kind] += 1
                self._nodes.order("add")
            elif victims := [pid for pid, found in self.processes().items() if found == kind]:
                with suppress(ProcessLookupError):
                    os.kill(self._chance.choice(victims), signal.SIGKILL)
                    self.killed[kind] += 1

    def stop(self) -> None:
        """Stop the thread and wait for its end."""
        self._stop_asked.set()
        self.join()

    def processes(self) -> dict[int, str]:
        """The kind of each process of an engine on a host."""
        parents, commands = dict[int, int](), dict[int, str]()
        for pid in processes_with(self._nodes.mark):
            with suppress(OSError):
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2]
                parents[pid], commands[pid] = int(stat.split()[1]), _command(pid)
        found = {}
        for pid, command in commands.items():
            above = commands.get(parents[pid], "")
            if command.startswith("ray::HostActor"):
                found[pid] = "actor"
            elif above.startswith("ray::HostActor"):
                found[pid] = "coordinator"
            elif "mpgrad.coordinator" in above:
                found[pid] = "worker"
        return found


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


class Tally:
    """What has happened, in all trainings."""

    def __init__(self) -> None:
        self.killed: Counter[str] = Counter()
        self.steps = self.wrong = self.repeated = 0
        self.errors: list[str] = []
        #: The kills of this training before the step that has run last began.
        self.killed_before = 0

    def figures(self) -> str:
        killed = ", ".join(f"{self.killed[kind]} {kind}s" for kind in KINDS)
        errors = f", {len(self.errors)} errors: {'; '.join(self.errors[:3])}" if self.errors else ""
        return (
            f"{self.killed.total()} killed on {NODES} nodes: {killed}; {self.steps} steps, "
            f"{self.wrong} with other bits than local, {self.repeated} repeated after "
            f"{DEATHS_MAX} deaths in one{errors}"
        )


#: The gradients of the next step, whose number is given; what allows to repeat it.
IsDue = Callable[[Exception], bool]
Steps = Callable[[int, IsDue], str]


def _perform(options: argparse.Namespace) -> Verdict:
    if importlib.util.find_spec("ray") is None:
        return Verdict(False, "Ray is not installed: pip install 'mpgrad[ray]'")
    print(f"cluster: --seed {options.seed} --kills {options.kills}", flush=True)
    has_torch = importlib.util.find_spec("torch") is not None
    loads = [_steps_of_mpgrad, _steps_of_torch][: 1 + has_torch]
    start, tally, shared = time.monotonic(), Tally(), _unused_memory()
    with two_nodes(NODES) as nodes:
        for number, load in enumerate(loads):
            kills = options.kills * (number + 1) // len(loads) - tally.killed.total()
            deadline = start + 60 * options.minutes * (number + 1) / len(loads)
            chance = random.Random(options.seed + number)
            _train(load, nodes, Killer(nodes, chance, kills), deadline, options.seed, tally)
    wait_until(lambda: not processes_with(nodes.mark))
    wait_until(lambda: not _unused_memory() - shared)
    left = [f"process {pid}" for pid in processes_with(nodes.mark)]
    left += sorted(_unused_memory() - shared)
    passed = not (tally.wrong or tally.errors or left) and tally.killed.total() >= options.kills
    took_s = time.monotonic() - start
    return Verdict(
        passed, f"{tally.figures()}; {took_s:.0f} s, {', '.join(left) or 'nothing'} left"
    )


def _unused_memory() -> set[str]:
    """The files in /dev/shm that no process uses."""
    used = set[str]()
    for pid in psutil.pids():
        with suppress(OSError):
            used |= named_memory_of(pid)
    return {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")} - used


def _train(
    load: Callable[[int], Steps],
    nodes: Nodes,
    killer: Killer,
    deadline: float,
    seed: int,
    tally: Tally,
) -> None:
    """Train until the killer is done, and once more."""
    with mg.Engine("local"):
        local = load(seed)
        expected = [local(number, _never) for number in range(STEPS)]
    tally.killed_before = 0
    with mg.Engine("process", cluster=nodes.address):
        killer.start()
        is_last = False
        while not is_last and not tally.errors:
            is_last = not killer.is_alive() or time.monotonic() > deadline
            if is_last:
                killer.stop()
            steps = load(seed)
            for number, digest in enumerate(expected):
                if not _step(steps, number, digest, killer, tally):
                    break
        killer.stop()
    tally.killed.update(killer.killed)
    if not wait_until(lambda: not killer.processes()):
        tally.errors.append(f"left: {killer.processes()}")


def _never(error: Exception) -> bool:
    return False


def _step(steps: Steps, number: int, expected: str, killer: Killer, tally: Tally) -> bool:
    """Whether the next step follows it."""
    # A death just before the step may be noticed in it.
    died, tally.killed_before = tally.killed_before, killer.killed.total()

    def is_due(error: Exception) -> bool:
        nonlocal died
        deaths, died = killer.killed.total() - died, killer.killed.total()
        is_allowed = isinstance(error, WorkerLost | CoordinatorLost) and deaths >= DEATHS_MAX
        tally.repeated += is_allowed
        return is_allowed

    try:
        found = steps(number, is_due)
    except Exception as error:
        tally.errors.append(f"step {number}: {type(error).__name__}: {error}")
        return False
    tally.steps += 1
    tally.wrong += found != expected
    return found == expected


def _steps_of_mpgrad(seed: int) -> Steps:
    training = BothPasses(seed)
    return lambda number, is_due: training.step(is_due)


def _steps_of_torch(seed: int) -> Steps:
    from stress.soak_torch import TorchMixture

    mixture = TorchMixture(seed)

    def step(number: int, is_due: IsDue) -> str:
        while True:
            try:
                return mixture.gradients(number).hex()
            except Exception as error:
                if not is_due(error):
                    raise

    return step


CLUSTER = Run(
    "cluster",
    "workers, actors and nodes of a Ray cluster die while calls run there, in both passes",
    _add_options,
    _perform,
)
