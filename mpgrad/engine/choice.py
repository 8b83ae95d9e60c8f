"""Where ``auto`` executes a graph: by the predicted times of both modes, and by earlier times."""

from __future__ import annotations

from collections import OrderedDict, deque
from statistics import median_low
from typing import Any, Literal, NamedTuple, TypeAlias

from mpgrad.autograd.freezing.frozen_graph import FrozenGraph
from mpgrad.scheduler import tuning
from mpgrad.scheduler.graph_spec import GraphSpec
from mpgrad.scheduler.plan_tables import Plan

Mode: TypeAlias = Literal["local", "process"]

#: The number of structures whose times are kept, the last used ones.
STRUCTURES_MAX = 64


class Prediction(NamedTuple):
    """The predicted time of a backward in each mode, in microseconds."""

    local: float
    process: float


class Choice(NamedTuple):
    """Where a graph runs, and why."""

    mode: str
    reason: str
    #: The prediction behind the choice; None if there was none.
    predicted: Prediction | None = None
    #: True if the mode is measured again although the other one is expected to be faster.
    is_trial: bool = False


def too_small(frozen: FrozenGraph, workers: int, message_us: float) -> Choice | None:
    """``local`` if no plan could make workers clearly faster; else None."""
    work_us = sum([spec.cost_us for spec in frozen.spec.nodes])
    if workers < 2:
        return Choice("local", "one CPU worker would not be faster than this process")
    least_us = tuning.BACKWARD_MESSAGES * message_us + work_us / workers
    if least_us * tuning.MARGIN >= work_us:
        return Choice("local", f"only {work_us:.0f} us of work")
    return None


def predict(planned: Plan, workers: int, message_us: float) -> Prediction:
    """The makespans of both modes.

    In ``local`` it is the work. In workers it is the largest of three: the critical path, an equal
    share of the work, and the serial tasks of the client; each with its messages.

    Graham's bound for list scheduling (Graham, "Bounds for certain multiprocessing anomalies",
    1966) says that the real makespan is at most twice this; with many tasks it is close.
    """
    share_us = (planned.work_us + len(planned.tasks) * message_us) / workers
    client_us = sum([task.cost_us for task in planned.tasks if task.on_client])
    longest_us = max(planned.critical_path_us + message_us, share_us, client_us)
    return Prediction(planned.work_us, tuning.BACKWARD_MESSAGES * message_us + longest_us)


def gpus_of(frozen: FrozenGraph) -> list[int]:
    """The GPUs on which gradients of ``frozen`` lie, each once."""
    found = {
        meta.device.index: None
        for node in frozen.nodes
        for meta in node.input_metadata
        if meta.device.index is not None
    }
    return list(found)


class Experience:
    """The times of graphs of one structure in each mode, relative to their predictions.

    The ratio is kept, not the time: shapes and costs may change from step to step.
    """

    def __init__(self) -> None:
        self._took: dict[Mode, deque[float]] = {
            mode: deque(maxlen=tuning.SAMPLES) for mode in ("local", "process")
        }
        self._has_begun: set[Mode] = set()
        self._spent_us = self._lost_us = 0.0

    def note(self, mode: Mode, took_us: float, choice: Choice) -> None:
        """Record the time of a backward without freezing and committing.

        The first backward of each mode does not count: it makes much that later ones use again.
        """
        if choice.predicted is None:
            return
        best_us = min(self._expected(choice.predicted))
        if choice.is_trial:
            self._lost_us += max(took_us - best_us, 0.0)
        if mode in self._has_begun:
            self._spent_us += best_us
            self._took[mode].append(took_us / max(getattr(choice.predicted, mode), 1.0))
        self._has_begun.add(mode)

    def choose(self, predicted: Prediction, *, has_workers: bool) -> Choice:
        """The faster mode, or the other one if it is due to be measured again.

        Args:
            predicted: for this graph.
            has_workers: whether they are running; workers are not started for a trial.
        """
        expected = self._expected(predicted)
        # Workers must be clearly better for a graph that may never come again.
        is_known = bool(self._took["process"]) or len(self._took["local"]) == tuning.SAMPLES
        margin = 1.0 if is_known else tuning.MARGIN
        is_faster = expected.process * margin < expected.local
        modes: tuple[Mode, Mode] = ("process", "local") if is_faster else ("local", "process")
        mode, other = modes
        reason = (
            f"workers would take about {expected.process:.0f} us, "
            f"this process {expected.local:.0f} us"
        )
        if len(self._took[mode]) == tuning.SAMPLES and (other == "local" or has_workers):
            best_us, other_us = min(expected), getattr(expected, other)
            # A trial counts as more expensive than predicted, because the prediction may be wrong.
            loss_us = max(other_us, tuning.MARGIN * best_us) - best_us
            if self._lost_us + loss_us <= tuning.TRIAL_SHARE * self._spent_us:
                return Choice(other, f"to measure it again; {reason}", predicted, is_trial=True)
        return Choice(mode, reason, predicted)

    def _expected(self, predicted: Prediction) -> Prediction:
        """The predictions corrected by the medians, so that one interruption does not decide.

        If a graph is slower in this process than its rules take, the same factor is assumed for
        workers until it is measured.
        """
        local, process = self._took["local"], self._took["process"]
        here = median_low(local) if local else 1.0
        there = median_low(process) if process else here
        return Prediction(predicted.local * here, predicted.process * there)


class Experiences:
    """Experiences by structure: all of a graph but sizes and costs. Not thread-safe by itself."""

    def __init__(self) -> None:
        self._found: OrderedDict[Any, Experience] = OrderedDict()

    def of(self, spec: GraphSpec) -> Experience:
        """The experience with graphs of this structure."""
        key = tuple([(node.name, node.edges, node.on_client) for node in spec.nodes])
        found = self._found.setdefault(key, Experience())
        self._found.move_to_end(key)
        if len(self._found) > STRUCTURES_MAX:
            self._found.popitem(last=False)
        return found
