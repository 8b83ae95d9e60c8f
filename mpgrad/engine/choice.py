"""Where ``auto`` executes a graph: by the predicted times of both modes, and by earlier times."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Literal, NamedTuple, TypeAlias

from mpgrad.autograd.freezing.frozen_graph import FrozenGraph
from mpgrad.base.duration_text import duration
from mpgrad.scheduler import tuning
from mpgrad.scheduler.graph_spec import GraphSpec
from mpgrad.scheduler.plan_tables import Plan
from mpgrad.scheduler.split import serial_us

Mode: TypeAlias = Literal["local", "process"]

#: The lower quartile and the median.
QUARTER, MIDDLE = 0.25, 0.5
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
    if least_us * tuning.MARGIN >= work_us:
        return Choice("local", f"only {duration(work_us)} of work")
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

    In ``local`` it is the work. In workers it is the largest of three: the critical path, an equal
    share of the work, and the serial tasks of the client; each with its messages. If the calling
    thread takes part, it also works in their time.

    Graham's bound for list scheduling (Graham, "Bounds for certain multiprocessing anomalies",
    1966) says that the real makespan is at most twice this; with many tasks it is close.
    """
    messages_us = tuning.BACKWARD_MESSAGES * message_us
    work_us = planned.work_us - (messages_us if planned.callers >= 0 else 0.0)
    share_us = (work_us + len(planned.tasks) * message_us) / workers
    client_us = sum([task.cost_us for task in planned.tasks if task.on_client])
    longest_us = max(planned.critical_path_us + message_us, share_us, client_us)
    return Prediction(planned.work_us, messages_us + longest_us)


class _Sample(NamedTuple):
    """What a backward took, in microseconds, and what was predicted for it."""

    took: float
    predicted: float
    shapes: int


class Experience:
    """The times of graphs of one structure in each mode.

    They are compared with one another, not with predictions, which change while costs are learned.
    Only from graphs of other shapes the ratio to the prediction is taken.
    """

    def __init__(self) -> None:
        self._took: dict[Mode, deque[_Sample]] = {
            mode: deque(maxlen=tuning.SAMPLES) for mode in ("local", "process")
        }
        #: The last samples of a mode as far as they were far from its usual time.
        self._odd: dict[Mode, list[_Sample]] = {"local": [], "process": []}
        self._has_begun: set[Mode] = set()
        self._spent_us = self._lost_us = 0.0
        #: The last prediction that ``choose`` was given.
        self._predicted: Prediction | None = None

    @property
    def is_new(self) -> bool:
        """Whether no backward of such a graph has run."""
        return not self._has_begun

    def begin(self, mode: Mode) -> None:
        """A backward has run in that mode, or a part of one, under conditions that do not count."""
        self._has_begun.add(mode)

    def note(self, mode: Mode, took_us: float, choice: Choice) -> None:
        """Record the time of a backward without freezing and committing.

        The first backward of each mode does not count: it makes much that later ones use again.
        """
        assert choice.predicted is not None, "nothing was compared"
        expected = self._expected(choice.predicted, choice.shapes)
        if mode in self._has_begun:
            best_us = min(expected)
            self._spent_us += best_us
            if choice.is_trial and self._took[mode]:
                self._lost_us += max(took_us - best_us, 0.0)
            predicted_us = getattr(choice.predicted, mode)
            sample = _Sample(took_us, predicted_us, choice.shapes)
            usual_us = self._usual_us(mode, predicted_us, choice.shapes, MIDDLE)
            self._add(mode, sample, took_us if usual_us is None else usual_us)
        self.begin(mode)

    def _add(self, mode: Mode, sample: _Sample, usual_us: float) -> None:
        """Keep a sample. If several in a row are far off, the graph takes another time now."""
        took, odd = self._took[mode], self._odd[mode]
        low, high = sorted((sample.took, usual_us))
        if took and high > tuning.FAR_OFF * low:
            odd.append(sample)
        else:
            odd.clear()
        took.append(sample)
        if len(odd) == tuning.KNOWN_FROM:
            for samples in self._took.values():
                samples.clear()
            took.extend(odd)
            odd.clear()

    def predict_alike(self, work_us: float) -> Prediction | None:
        """The prediction for a graph without a plan, in the ratio of the last one.

        None until both modes are known. A plan takes some percent of the time in this process, and
        graphs whose shapes change would need a new one in each step.

        Args:
            work_us: the cost of the graph's Nodes.
        """
        if self._predicted is None or min(map(len, self._took.values())) < tuning.KNOWN_FROM:
            return None
        ratio = self._predicted.process / max(self._predicted.local, 1.0)
        return Prediction(work_us, work_us * ratio)

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
        is_known = bool(self._took["process"]) or len(self._took["local"]) == tuning.SAMPLES
        margin = 1.0 if is_known else tuning.MARGIN
        is_faster = expected.process * margin < expected.local
        modes: tuple[Mode, Mode] = ("process", "local") if is_faster else ("local", "process")
        mode, other = modes
        reason = (
            f"workers would take about {duration(expected.process)}, "
            f"this process {duration(expected.local)}"
        )
        can_try = other == "local" or has_workers
        if can_try and self._is_due(mode, other, expected):
            text = f"to measure it; {reason}"
            return Choice(other, text, predicted, is_trial=True, shapes=shapes)
        return Choice(mode, reason, predicted, shapes=shapes)

    def _is_due(self, mode: Mode, other: Mode, expected: Prediction) -> bool:
        """Whether the other mode is to be measured now.

        It is soon if it is hardly known and the modes may be close. Then it is again and again,
        for a small share of the time. One time of this process is enough if it is clearly longer;
        workers may need more than one backward until they are as fast as they can be.
        """
        if not self._took[mode]:
            return False
        best_us = min(expected)
        ratio = getattr(expected, other) / max(best_us, 1.0)
        is_clear = other == "local" and bool(self._took[other]) and ratio > tuning.MARGIN
        is_known = is_clear or len(self._took[other]) >= tuning.KNOWN_FROM
        if not is_known and ratio <= tuning.FAR_OFF:
            return True
        # A trial counts as more expensive than predicted, because the prediction may be wrong.
        loss_us = (max(ratio, tuning.MARGIN) - 1.0) * best_us
        return self._lost_us + loss_us <= tuning.TRIAL_SHARE * self._spent_us

    def _expected(self, predicted: Prediction, shapes: int) -> Prediction:
        """What such graphs took, so that interruptions do not decide: these only make longer.

        If a graph is slower in this process than its rules take, the same factor is assumed for
        workers until it is measured.
        """
        local = self._usual_us("local", predicted.local, shapes)
        process = self._usual_us("process", predicted.process, shapes)
        here = 1.0 if local is None else local / max(predicted.local, 1.0)
        return Prediction(
            predicted.local if local is None else local,
            predicted.process * here if process is None else process,
        )

    def _usual_us(
        self, mode: Mode, predicted_us: float, shapes: int, part: float = QUARTER
    ) -> float | None:
        """A quantile of the samples; None if there are none.

        The lower quartile, which interruptions do not change, follows two shorter times at once.
        """
        samples = self._took[mode]
        if not samples:
            return None
        times = sorted(
            [
                took if shapes == of else took / max(predicted, 1.0) * predicted_us
                for took, predicted, of in samples
            ]
        )
        return times[int((len(times) - 1) * part)]


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
