"""advice_for(): what the figures of a profile mean, in sentences, the weightiest first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from mpgrad.base.duration_text import duration
from mpgrad.engine.report.analysis import CLIENT, HAND_OVER, QUEUES, BackwardFigures, Shares, Step

#: Shares from which something is worth a sentence.
NOTABLE, LARGE, MOST = 0.1, 0.4, 0.6
#: A weight above all shares.
ALWAYS_FIRST = 2.0


class _Advice(NamedTuple):
    weight: float
    text: str


def advice_for(figures: Sequence[BackwardFigures], shares: Shares, step: Step) -> list[str]:
    """Sentences; there is always one."""
    if not figures:
        return ["No backward ran in this profile: put backward() into its block."]
    found = [
        *_of_the_step(step),
        *_of_the_program(shares, step.maps),
        *_of_places(figures),
        *[_Advice(LARGE, text) for text in dict.fromkeys(t for f in figures for t in f.run.loops)],
        *_of_chains(figures),
        *_of_idle_workers([one for one in figures if one.run.plan is not None]),
    ]
    found.sort(key=lambda item: -item.weight)
    return [text for _, text in found] or ["Nothing stands out."]


def _of_the_step(step: Step) -> Iterator[_Advice]:
    """Amdahl's law, first of all: what no number of workers can change."""
    if step.workers > 1 and step.parallel:
        yield _Advice(
            ALWAYS_FIRST,
            f"{_percent(step.share)} of the work can be divided among workers, so the step can "
            f"become at most {step.limit(step.workers):.2f} times as fast with {step.workers} of "
            f"them, and {step.limit(math.inf):.2f} times with any number. It was "
            f"{step.reached:.2f} times as fast as in one process.",
        )


def _of_the_program(shares: Shares, maps: float) -> Iterator[_Advice]:
    total = sum(shares) or 1.0
    for seconds, least, text in (
        (shares.input, NOTABLE, "waits for a batch: DataLoader(num_workers=...) makes it ahead"),
        (
            shares.forward - maps,
            LARGE,
            "is forward, which runs in this process, whatever the workers do",
        ),
        (shares.optimizer, LARGE, "is the optimizer's step"),
        (shares.other, LARGE, "is other Python code, beside forward, backward, optimizer and data"),
    ):
        if seconds / total >= least:
            yield _Advice(seconds / total, f"{_percent(seconds / total)} of the time {text}.")


def _of_places(figures: Sequence[BackwardFigures]) -> Iterator[_Advice]:
    here = [one for one in figures if one.run.mode == "local"]
    if not here:
        return
    share = sum(one.took for one in here) / (sum(one.took for one in figures) or 1.0)
    reasons = "; ".join(list(dict.fromkeys(one.run.why for one in here))[:2])
    count = f"{len(here)} of {len(figures)} backward passes"
    yield _Advice(share, f"{count} ran in this process, not in workers: {reasons}.")


def _of_chains(figures: Sequence[BackwardFigures]) -> Iterator[_Advice]:
    took = sum(one.took for one in figures)
    work = sum(one.work for one in figures)
    chain = sum(one.chain for one in figures)
    if not chain or not took:
        return
    if chain / took >= MOST:
        yield _Advice(
            chain / took,
            f"{_percent(chain / took)} of the backward time is one chain of Nodes, each waiting "
            "for the one before: more workers do not help there. Branches that do not need each "
            "other's results would.",
        )
    elif work / chain >= 2:
        workers = max(one.run.workers for one in figures)
        used = f"{workers} {'was' if workers == 1 else 'were'} used"
        yield _Advice(
            0.05,
            f"The graphs have work for {work / chain:.1f} workers; {used}: "
            "Engine(cpu_workers=...) takes more where the machine has more cores.",
        )


def _of_idle_workers(figures: Sequence[BackwardFigures]) -> Iterator[_Advice]:
    room = sum(one.took * one.run.workers for one in figures) or 1.0

    def share(cause: str) -> float:
        return sum(one.idle.get(cause, 0.0) for one in figures) / room

    def waits(cause: str) -> str:
        return f"For {_percent(share(cause))} of their time the workers wait"

    if share(CLIENT) >= NOTABLE:
        reasons = [reason for one in figures for reason in one.run.on_client.values()]
        because = reasons[0] if reasons else 'they are hooks, or have run_on = "client".'
        yield _Advice(
            share(CLIENT),
            f"{waits(CLIENT)} for hooks and Functions that run in this process: {because}",
        )
    if share(HAND_OVER) >= NOTABLE:
        copied = sum(one.run.copied_bytes for one in figures) / 2**20
        yield _Advice(
            share(HAND_OVER),
            f"{waits(HAND_OVER)} until the graph is planned and handed over ({copied:.1f} MiB were "
            "copied). Tensors that mpgrad makes need no copy; fewer, larger Nodes need fewer "
            "messages.",
        )
    core_wait = sum(one.run.core_wait for one in figures) / room
    if core_wait >= NOTABLE:
        yield _Advice(
            core_wait,
            f"For {_percent(core_wait)} of their time the workers wait for a free core, in tasks "
            "and between them: other programs use the machine, or there are more workers than "
            "cores. Engine(cpu_workers=...) takes fewer.",
        )
    tasks = [run.ended - run.started for one in figures for run in one.run.tasks]
    # A worker without a core does not take its message either.
    if share(QUEUES) >= NOTABLE and share(QUEUES) > core_wait and tasks:
        yield _Advice(
            share(QUEUES),
            f"{waits(QUEUES)} for messages, although tasks are ready. The median task takes "
            f"{duration(1e6 * median(tasks))}: larger Functions need fewer messages.",
        )
    again = sum(run.attempt > 1 for one in figures for run in one.run.tasks)
    if again:
        yield _Advice(0.5, f"{again} tasks ran again, because a worker had died.")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
