"""Kill points: where a process of the engine shall die, so that every recovery can be tried.

A point is ``process:phase:nth[:signal]``; several of them are separated by commas. They hold for
engines that start in the environment that ``dying`` gives, where ``MPGRAD_TEST_HOOK`` names
``hook``.

A worker counts by the plan, so that it is the same NodeTask each time, whoever gets it: the n-th
NodeTask of a backward (or of calls forward), in its first attempt. Of several points for workers
the first one holds for the engine's first backward, the second one for its second, and so on; "-"
spares one. The coordinator and the client count how often they pass the phase.
"""

from __future__ import annotations

import functools
import os
import signal
import warnings
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pytest

#: The variable in which children find their points.
VARIABLE = "TEST_KILL_POINTS"
#: In this one the coordinator finds for how many seconds a worker may be stopped.
STOPPED_LIMIT = "TEST_STOPPED_LIMIT_S"

#: The phases of each process, in the order in which they are passed.
PHASES: dict[str, tuple[str, ...]] = {
    "worker": (
        "joining",  # it has started and not yet said Hello; the n-th of the first workers
        "received",  # the task is chosen, nothing has been touched
        "summed",  # its inputs are opened and added up
        "ran",  # its first rule has run, nothing has been written
        "published",  # all outputs are written
        "before-reply",  # nobody knows of it
        "after-reply",  # the reply is with the transport
    ),
    "coordinator": (
        "submitted",  # a backward has arrived
        "dispatching",  # a task is about to leave
        "dispatched",  # it has left
        "answered",  # a reply has arrived
        "completing",  # the results are about to leave
        "completed",  # they have left
    ),
    "client": (
        "submitting",  # a backward is about to leave
        "submitted",  # it has left
        "called",  # a task of the client has arrived
        "completed",  # the results have arrived, nothing has been committed
    ),
}
SPARED = "-"


class KillPoint(NamedTuple):
    """One place at which a process sends itself a signal."""

    process: str
    phase: str
    #: From 1.
    nth: int
    #: A signal, or what is done in place of sending one: "FORK", "CLOSE", "SLEEP", "SPIN".
    sent: int | str = signal.SIGKILL


def dying(points: str) -> dict[str, str]:
    """The environment of an engine whose processes die at ``points``.

    Raises:
        ValueError: one of them is none; the message says what is wrong.
    """
    _parse(points)
    return {"MPGRAD_TEST_HOOK": f"{__name__}:hook", VARIABLE: points}


def kill_at(patch: pytest.MonkeyPatch, points: str) -> None:
    """Have the processes of engines that start from now on die at ``points``."""
    for name, value in dying(points).items():
        patch.setenv(name, value)


def hook(process: str, part: Any) -> Any:
    """``part`` of this process, which dies at its points: see ``mpgrad.base.hook_for_tests``."""
    if process == "coordinator" and STOPPED_LIMIT in os.environ:
        from mpgrad.coordinator import worker_watchdog

        worker_watchdog.STOPPED_LIMIT_S = float(os.environ[STOPPED_LIMIT])
    if not any(points_of(process)):
        return part
    if process == "worker":
        from tests.process.doomed_worker import DoomedWorker

        return DoomedWorker
    from tests.process.doomed_transports import DoomedDealer, DoomedRouter

    return (DoomedRouter if process == "coordinator" else DoomedDealer)(part, _passages(process))


def points_of(process: str) -> list[KillPoint | None]:
    """The points of ``process`` in their order; None where one is spared."""
    points = _parse(os.environ[VARIABLE])
    return [point for point in points if point is None or point.process == process]


def _parse(points: str) -> list[KillPoint | None]:
    return [_point(word.strip()) for word in points.split(",")]


def _point(word: str) -> KillPoint | None:
    if word == SPARED:
        return None
    process, _, rest = word.partition(":")
    phase, _, rest = rest.partition(":")
    nth, _, name = rest.partition(":")
    if process not in PHASES:
        raise ValueError(f"{word!r}: the process must be one of {', '.join(PHASES)}")
    if phase not in PHASES[process]:
        raise ValueError(f"{word!r}: the phases of {process} are {', '.join(PHASES[process])}")
    if not nth.isdecimal() or int(nth) < 1:
        raise ValueError(f"{word!r}: expected a whole number of at least 1 after {phase}")
    if name in _DEEDS:
        return KillPoint(process, phase, int(nth), name)
    name = f"SIG{name.upper().removeprefix('SIG') or 'KILL'}"
    if name not in signal.Signals.__members__:
        raise ValueError(f"{word!r}: {name} is no signal")
    return KillPoint(process, phase, int(nth), signal.Signals[name])


def strike(point: KillPoint) -> None:
    """Send this process the signal of ``point``; SIGKILL does not return."""
    if isinstance(point.sent, str):
        _DEEDS[point.sent]()
    else:
        os.kill(os.getpid(), point.sent)


def _fork() -> None:
    """A child that ends at once, as ``subprocess`` and others make them."""
    with warnings.catch_warnings():  # that a worker has threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def _sleep() -> None:
    """Never return, and do nothing."""
    while True:
        signal.pause()


def _spin() -> None:
    """Never return, and use a processor."""
    while True:
        pass


#: What is done to a process beside sending it signals.
_DEEDS = {
    "FORK": _fork,
    "CLOSE": lambda: os.closerange(3, 256),
    "SLEEP": _sleep,
    "SPIN": _spin,
}


class Passages:
    """Counts how often a process passes its phases, and strikes when it is time."""

    def __init__(self, points: Iterable[KillPoint | None]) -> None:
        self._points = [point for point in points if point is not None]
        self._counts: Counter[str] = Counter()

    def passes(self, phase: str) -> None:
        """The process passes ``phase`` once more."""
        self._counts[phase] += 1
        for point in self._points:
            if (point.phase, point.nth) == (phase, self._counts[phase]):
                strike(point)


@functools.cache
def _passages(process: str) -> Passages:
    """All sessions of a client count together."""
    return Passages(points_of(process))
