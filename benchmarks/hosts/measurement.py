"""Measurement: all that ``scripts/bench hosts`` measures, in one run."""

from __future__ import annotations

import json
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.hosts.deaths import (
    until_lost_s,
    until_lost_without_raylet_s,
    until_training_s,
)
from benchmarks.hosts.program import Program
from benchmarks.hosts.ray_calls import RayCalls, two_nodes

#: Bytes, and the trips of one sample.
SIZES = {8: 10, 64 * 1024: 10, 1024**2: 5, 16 * 1024**2: 2}
CROSSINGS, BACKWARDS = (2, 8), 10
MODES = ("smart", "fast")
#: The contenders of a hop.
CURVE, PLAIN, CALL, HALF = "encrypted", "plain", "Ray call", "half of a Ray call"


@dataclass(frozen=True)
class Effort:
    """How often."""

    rounds: int
    overlap_rounds: int
    kills: int
    stops: int
    restarts: int


THOROUGH = Effort(rounds=25, overlap_rounds=8, kills=5, stops=2, restarts=8)
QUICK = Effort(rounds=3, overlap_rounds=2, kills=1, stops=1, restarts=1)


@dataclass
class Figures:
    """Milliseconds of rounds, by what was measured; and seconds after deaths."""

    hops: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    backwards: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    #: Seconds of the backward, of the averaging, of both at once.
    overlap: list[tuple[float, float, float]] = field(default_factory=list)
    #: Seconds at which each bucket left and came back.
    buckets: list[tuple[float, float]] = field(default_factory=list)
    #: What has happened to a rank, and the seconds until the last of the others knew.
    lost: dict[str, list[float]] = field(default_factory=dict)
    training: list[float] = field(default_factory=list)


def measure(effort: Effort) -> Figures:
    """All of it; it takes minutes."""
    found = Figures()
    with two_nodes() as cluster:
        _say("hops and backwards")
        _cross(found, effort, cluster.address)
        _say("deaths of a raylet, of processes, of hosts")
        found.lost["the raylet of a host is killed"] = [until_lost_without_raylet_s(cluster)]
    for what, number, times in (
        ("a process is killed", signal.SIGKILL, effort.kills),
        ("a process is stopped", signal.SIGSTOP, effort.stops),
    ):
        found.lost[what] = [until_lost_s(number) for _ in range(times)]
    _say("deaths in a training")
    found.training = until_training_s(effort.restarts)
    _say("overlap")
    with Program("overlap.py", 2, [str(effort.overlap_rounds)]) as program:
        said = program.answer()
    found.overlap, found.buckets = said["rounds"], said["buckets"]
    return found


def _cross(found: Figures, effort: Effort, address: str) -> None:
    with Program("crossing_ranks.py", 2) as curve, Program("crossing_ranks.py", 2, ["plain"]) as no:
        calls = RayCalls(address)
        for program in (curve, no):
            program.said("ready")
        measures: list[tuple[list[float], Callable[[], float]]] = []
        for size, times in SIZES.items():
            question = f"hop {size} {times}"
            contenders: dict[str, Callable[[], float]] = {
                CURVE: lambda q=question: curve.answer(q),  # type: ignore[misc]
                PLAIN: lambda q=question: no.answer(q),  # type: ignore[misc]
                CALL: lambda s=size, t=times: calls.call_ms(s, t),  # type: ignore[misc]
                HALF: lambda s=size, t=times: calls.half_ms(s, t),  # type: ignore[misc]
            }
            found.hops[size] = {name: [] for name in contenders}
            measures += [(found.hops[size][name], take) for name, take in contenders.items()]
        for crossings in CROSSINGS:
            found.backwards[crossings] = {mode: [] for mode in MODES}
            for mode, samples in found.backwards[crossings].items():
                question = f"backward {crossings} {mode} {BACKWARDS}"
                measures.append((samples, lambda q=question: curve.answer(q)))  # type: ignore[misc]
        for _, take in measures:
            take()
        for _ in range(effort.rounds):
            random.shuffle(measures)
            for samples, take in measures:
                samples.append(take())
        calls.close()


def _say(what: str) -> None:
    print(f"hosts: {what}", file=sys.stderr, flush=True)


def as_json(found: Figures) -> str:
    """All samples."""
    return json.dumps(vars(found))
