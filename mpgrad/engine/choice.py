"""Where ``auto`` runs a graph or a map: by the predicted times of both modes, and by earlier times.

This is the whole choice. A graph or map that may never come again runs in workers if these are
predicted to be clearly faster. If it comes again, its times count:

* The first time in a mode does not: workers import modules in it, and it makes much that later
  ones use again.
* The median of the last three times is what a mode takes. So a mode that has become slower is left
  after two steps, and one slow step changes nothing.
* This process is measured as soon as workers have been, unless it is predicted to be far slower;
  workers only if they are predicted to be faster, and never where one chain is nearly all. A mode
  that is hardly slower is measured once more, as is one that has lately been clearly faster.
* Later it is measured again when that costs a small share of the time since it was measured last.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Hashable
from statistics import median_low
from typing import Literal, NamedTuple, TypeAlias

from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.base.duration_text import duration
from mpgrad.scheduler import tuning
from mpgrad.scheduler.graph_spec import GraphSpec
from mpgrad.scheduler.plan_tables import Plan
from mpgrad.scheduler.split import serial_us

Mode: TypeAlias = Literal["local", "process"]

#: The number of times that count in each mode.
RECENT = 3
#: The number of structures whose times are kept, the last used ones.
STRUCTURES_MAX = 64


class Prediction(NamedTuple):
    """The predicted time of a backward in each mode, in microseconds.

    Attributes:
        local, process: in these modes.
        serial: of its longest chain, or of what only this process may run; no worker shortens it.
    """

    local: float
    process: float
    serial: float = 0.0


class Choice(NamedTuple):
    """Where a graph runs, and why."""

    mode: str
    reason: str
    #: The prediction behind the choice; None if there was none.
    predicted: Prediction | None = None
    #: True if the mode is measured although the other one is expected to be faster.
    is_trial: bool = False
    #: What distinguishes graphs of one structure by their shapes.
    shapes: int = 0


def too_small(frozen: FrozenGraph, workers: int, message_us: float) -> Choice | None:
    """``local`` if no plan could make workers clearly faster; else None."""
    work_us = sum([spec.cost_us for spec in frozen.spec.nodes])
    if workers < 2:
        return Choice("local", "one CPU worker would not be faster than this process")
    # The calling thread takes part, and works in the time of the messages, too.
    messages_us = tuning.BACKWARD_MESSAGES * message_us
    least_us = messages_us + (work_us - messages_us) / workers
    # What it does not send, it runs.
    sent = [1 for spec in frozen.spec.nodes if not spec.on_client]
    if max(least_us, tuning.NODE_US * len(sent)) * tuning.MARGIN >= work_us:
        return Choice("local", f"only {duration(work_us)} of work in {len(sent)} Nodes")
    return None


def too_serial(frozen: FrozenGraph, message_us: float) -> Choice | None:
    """``local`` if one chain is so long that no plan could make workers clearly faster; else None.

    A plan takes several times as long to make.
    """
    work_us = sum([spec.cost_us for spec in frozen.spec.nodes])
    chain_us = serial_us(frozen.spec, message_us)
    if (tuning.BACKWARD_MESSAGES * message_us + chain_us) * tuning.MARGIN < work_us:
        return None
    return Choice("local", f"{duration(chain_us)} of {duration(work_us)} of work are one chain")


def predict(planned: Plan, workers: int, message_us: float) -> Prediction:
    """The makespans of both modes.

    In ``local`` it is the work. In workers it is the time in which the client packs their Nodes,
    and the largest of three: the critical path, an equal share of the work, and the serial tasks of
    the client; each with its messages. If the calling thread takes part, it also works in their
    time.

    Graham's bound for list scheduling (Graham, "Bounds for certain multiprocessing anomalies",
    1966) says that the real makespan is at most twice this; with many tasks it is close.
    """
    messages_us = tuning.BACKWARD_MESSAGES * message_us
    work_us = planned.work_us - (messages_us if planned.local_share >= 0 else 0.0)
    sent = [
        len(group)
        for at, (task, group) in enumerate(zip(planned.tasks, planned.groups, strict=True))
        if not task.on_client and at != planned.local_share
    ]
    nodes_us = tuning.NODE_US * sum(sent)
    share_us = (work_us + len(planned.tasks) * message_us + nodes_us) / workers
    client_us = sum([task.cost_us for task in planned.tasks if task.on_client])
    longest_us = max(planned.critical_path_us + message_us, share_us, client_us)
    serial_us = max(planned.critical_path_us, client_us)
    return Prediction(planned.work_us, messages_us + nodes_us + longest_us, serial_us)


class _Sample(NamedTuple):
    """What a backward took, in microseconds, and what was predicted for it."""

    took: float
    predicted: float
    shapes: int


class Experience:
    """The times of graphs of one structure, or of maps of one function, in each mode.

    They are compared with one another, not with predictions, which change while costs are learned.
    Only from graphs of other shapes the ratio to the prediction is taken.
    """

    def __init__(self) -> None:
        self._took: dict[Mode, deque[_Sample]] = {
            mode: deque(maxlen=RECENT) for mode in ("local", "process")
        }
        #: The number of times since a mode was measured.
        self._age: dict[Mode, int] = {"local": 0, "process": 0}
        #: The shortest time of each mode that has begun, in microseconds, be it one that does not
        #: count.
        self._shortest: dict[Mode, float] = {}
        #: What all would have taken less in workers, as predicted; and what the last one took here.
        self._lost_us = 0.0
        self._last_here_us = 0.0
        #: The last prediction that ``choose`` was given.
        self._predicted: Prediction | None = None
        #: Maps that have ended, which the collector may find at any moment: the mode, the time, and
        #: the choice; None for one that does not count.
        self.ended: deque[tuple[Mode, float, Choice | None]] = deque()

    @property
    def here_us(self) -> float | None:
        """What one takes in this process; None if that has not been measured."""
        took = [sample.took for sample in self._took["local"]]
        return median_low(took) if took else None

    @property
    def start_after_us(self) -> float:
        """The time from now on after which workers are worth their start, as this may not go on
        for longer than it has."""
        left_us = max(tuning.START_US - self._lost_us, 0.0)
        return left_us / self._share_lost() if left_us else 0.0

    def _share_lost(self) -> float:
        """The part of the time here that workers would save."""
        if self._predicted is None:
            return tuning.LOST_SHARE
        saved = 1.0 - self._predicted.process / max(self._predicted.local, 1.0)
        return max(saved, tuning.TRIAL_SHARE)

    def ends_before_start(self) -> bool:
        """Whether another backward here will have ended before workers are worth their start."""
        return 0.0 < self._last_here_us < self.start_after_us

    def begin(self, mode: Mode, took_us: float = 0.0) -> None:
        """A backward has run in that mode, or a part of one, under conditions that do not count."""
        self._shortest[mode] = min(took_us or math.inf, self._shortest.get(mode, math.inf))
        if mode == "local":
            self._lost_us += took_us * self._share_lost()
            self._last_here_us = took_us

    def note(self, mode: Mode, took_us: float, choice: Choice) -> None:
        """Record the time of a backward without freezing and committing, but with its preparation,
        or of a map."""
        assert choice.predicted is not None, "nothing was compared"
        other: Mode = "process" if mode == "local" else "local"
        if mode in self._shortest:
            sample = _Sample(took_us, getattr(choice.predicted, mode), choice.shapes)
            self._took[mode].append(sample)
        self._age[mode], self._age[other] = 0, self._age[other] + 1
        self.begin(mode, took_us)

    def note_ended(self) -> None:
        """Record the times of all in ``ended``."""
        while self.ended:
            mode, took_us, choice = self.ended.popleft()
            if choice is None:
                self.begin(mode, took_us)
            else:
                self.note(mode, took_us, choice)

    def predict_alike(self, work_us: float) -> Prediction | None:
        """The prediction for a graph without a plan, in the ratio of the last one.

        None until both modes are known. A plan takes some percent of the time in this process, and
        graphs whose shapes change would need a new one in each step.

        Args:
            work_us: the cost of the graph's Nodes.
        """
        if self._predicted is None or not all(self._took.values()):
            return None
        local_us, *others_us = self._predicted
        process, serial = [one / max(local_us, 1.0) for one in others_us]
        return Prediction(work_us, work_us * process, work_us * serial)

    def choose(self, predicted: Prediction, *, has_workers: bool, shapes: int = 0) -> Choice:
        """The faster mode, or the other one if it is due to be measured.

        Args:
            predicted: for this graph.
            has_workers: whether they are running; workers are not started for a trial.
            shapes: of this graph.
        """
        self._predicted = predicted
        expected = self._expected(predicted, shapes)
        # Workers must be clearly better for a graph that may never come again.
        is_known = bool(self._took["process"]) or len(self._took["local"]) == RECENT
        margin = 1.0 if is_known else tuning.MARGIN
        is_faster = expected.process * margin < expected.local
        modes: tuple[Mode, Mode] = ("process", "local") if is_faster else ("local", "process")
        mode, other = modes
        reason = (
            f"workers would take about {duration(expected.process)}, "
            f"this process {duration(expected.local)}"
        )
        can_try = other == "local" or has_workers
        if can_try and self._is_due(mode, other, predicted, expected, shapes):
            text = f"to measure it; {reason}"
            return Choice(other, text, predicted, is_trial=True, shapes=shapes)
        return Choice(mode, reason, predicted, shapes=shapes)

    def _is_due(
        self, mode: Mode, other: Mode, predicted: Prediction, expected: Prediction, shapes: int
    ) -> bool:
        """Whether the other mode is to be measured now."""
        is_serial = predicted.serial * tuning.MARGIN >= predicted.local
        if not self._took[mode] or (other == "process" and is_serial):
            return False
        usual_us, other_us = getattr(expected, mode), getattr(expected, other)
        times = self._times(other, predicted, shapes)
        if not times:
            # Whatever has made workers slower than predicted may do so with this process.
            best_us = max(usual_us, getattr(predicted, mode))
            if other == "local" and predicted.local <= tuning.FAR_OFF * best_us:
                return True
            if other == "process" and predicted.process <= predicted.local:
                return True
        else:
            # Workers may need more than one time until they are as fast as they can be.
            most = tuning.MARGIN if other == "local" else tuning.FAR_OFF
            if len(times) == 1 and times[0] <= most * usual_us:
                return True
            shortest_us = min(times)
            if len(times) < RECENT:  # a time that does not count was still not too long
                shortest_us = min(shortest_us, self._shortest.get(other, math.inf))
            if self._age[other] and shortest_us * tuning.MARGIN < usual_us:
                return True
        # A trial counts as more expensive than expected, because that may be wrong; and the first
        # time of workers, which import modules in it, as one that takes as long as several here.
        least = tuning.MARGIN if times or other == "local" else tuning.FAR_OFF
        loss = max(other_us / max(usual_us, 1.0), least) - 1.0
        return loss <= tuning.TRIAL_SHARE * self._age[other]

    def _expected(self, predicted: Prediction, shapes: int) -> Prediction:
        """What such graphs took.

        If a graph is slower in this process than its rules take, the same factor is assumed for
        workers until it is measured.
        """
        local_us = self._usual_us("local", predicted, shapes)
        process_us = self._usual_us("process", predicted, shapes)
        here = 1.0 if local_us is None else local_us / max(predicted.local, 1.0)
        return Prediction(
            predicted.local if local_us is None else local_us,
            predicted.process * here if process_us is None else process_us,
        )

    def _usual_us(self, mode: Mode, predicted: Prediction, shapes: int) -> float | None:
        """What a mode takes; None if that has not been measured."""
        times = self._times(mode, predicted, shapes)
        return median_low(times) if times else None

    def _times(self, mode: Mode, predicted: Prediction, shapes: int) -> list[float]:
        """The last times of a mode in microseconds, the newest one last."""
        predicted_us = getattr(predicted, mode)
        return [
            took if shapes == of else took / max(before, 1.0) * predicted_us
            for took, before, of in self._took[mode]
        ]


class Experiences:
    """Experiences by structure or function, the last used ones. Not thread-safe by itself."""

    def __init__(self, most: int = STRUCTURES_MAX) -> None:
        self._found: OrderedDict[Hashable, Experience] = OrderedDict()
        self._most = most

    def of(self, key: Hashable) -> Experience:
        """What is known about ``key``."""
        found = self._found.setdefault(key, Experience())
        self._found.move_to_end(key)
        if len(self._found) > self._most:
            self._found.popitem(last=False)
        return found


def structure_of(spec: GraphSpec) -> Hashable:
    """All of a graph but sizes and costs."""
    return tuple([(node.name, node.edges, node.on_client) for node in spec.nodes])
