"""Kill points: where a process of the engine shall die, so that every recovery can be tried.

``MPGRAD_KILL=process:phase:nth[:signal]``, several of them separated by commas. Nothing of this is
loaded, and nothing is asked while the engine works, unless the variable is set.

A worker counts by the plan, so that it is the same NodeTask each time, whoever gets it: the n-th
NodeTask of a backward, in its first attempt. Of several points for workers the first one holds for
the engine's first backward, the second one for its second, and so on; "-" spares one. The
coordinator and the client count how often they pass the phase. An engine that had to be started
again has no kill points.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

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
    sent: int = signal.SIGKILL


def parse_kill_points(text: str) -> str:
    """``text``, if it is one; :func:`kill_points` takes it apart.

    Raises:
        ValueError: it is not; the message says what is wrong.
    """
    for word in _words(text):
        _point(word)
    return text


def kill_points(text: str, process: str) -> list[KillPoint | None]:
    """The points of ``process`` in their order; None where one is spared."""
    points = [_point(word) for word in _words(text)]
    return [point for point in points if point is None or point.process == process]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")] if text.strip() else []


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
    name = f"SIG{name.upper().removeprefix('SIG') or 'KILL'}"
    if name not in signal.Signals.__members__:
        raise ValueError(f"{word!r}: {name} is no signal")
    return KillPoint(process, phase, int(nth), signal.Signals[name])


def strike(point: KillPoint) -> None:
    """Send this process the signal of ``point``; SIGKILL does not return."""
    os.kill(os.getpid(), point.sent)


class Passages:
    """Counts how often a process passes its phases, and strikes when it is time."""

    def __init__(self, points: Iterable[KillPoint | None]) -> None:
        self._points = [point for point in points if point is not None]
        self._counts: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._points)

    def passes(self, phase: str) -> None:
        """The process passes ``phase`` once more."""
        self._counts[phase] += 1
        for point in self._points:
            if (point.phase, point.nth) == (phase, self._counts[phase]):
                strike(point)
