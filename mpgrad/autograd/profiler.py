"""The profiler: what ran when, in this process and in workers, with PyTorch's interface.

A range of a Node that ran on a worker carries the worker's own times. What is noted stands in
``profiling``. Without a profile that runs, an operator and a Node cost what they always do.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterable
from enum import Enum
from time import perf_counter
from types import TracebackType
from typing import Any, TypeVar

from mpgrad.autograd.profiling.averages import Averages
from mpgrad.autograd.profiling.chrome_trace import trace_of
from mpgrad.autograd.profiling.function_events import FunctionEvent, events_of
from mpgrad.autograd.profiling.ranges import ANNOTATION, RUNNING, Recording

__all__ = [
    "ProfilerAction",
    "ProfilerActivity",
    "profile",
    "record_function",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]

F = TypeVar("F", bound=Callable[..., Any])


class ProfilerActivity(Enum):
    """What is recorded; here there is only the CPU."""

    CPU = 0


def supported_activities() -> set[ProfilerActivity]:
    """What can be recorded."""
    return {ProfilerActivity.CPU}


class ProfilerAction(Enum):
    """What a profile does in a step: nothing, the same (it has nothing to warm up), record, or
    record and end with that step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


_RECORDS = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


def schedule(
    *,
    wait: int,
    warmup: int,
    active: int,
    repeat: int = 0,
    skip_first: int = 0,
    skip_first_wait: int = 0,
) -> Callable[[int], ProfilerAction]:
    """What ``profile(schedule=...)`` takes: so many steps of each kind, over and over.

    Args:
        wait: steps in which nothing happens.
        warmup: steps behind them, in which nothing is recorded either.
        active: steps that are recorded.
        repeat: how many such cycles there are; 0: until the profile ends.
        skip_first: steps before the first cycle.
        skip_first_wait: other than 0: the first cycle does not wait.

    Raises:
        ValueError: a number is negative, or ``active`` is 0.
    """
    if min(wait, warmup, repeat, skip_first) < 0 or active <= 0:
        raise ValueError(
            "schedule() wants active > 0, and no negative wait, warmup, repeat or skip_first; got "
            f"{wait=}, {warmup=}, {active=}, {repeat=}, {skip_first=}"
        )
    length = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        if step < 0:
            raise ValueError(f"steps are counted from 0, not {step}")
        cycle, at = divmod(step - skip_first + (wait if skip_first_wait else 0), length)
        if step < skip_first or (repeat and cycle >= repeat) or at < wait:
            return ProfilerAction.NONE
        if at < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if at < length - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


def _always(step: int) -> ProfilerAction:
    return ProfilerAction.RECORD


#: The profile that was started last, and the one that has recorded last.
_started: profile | None = None
_latest: profile | None = None


def latest() -> profile:
    """The profile that records, else the one that did last.

    Raises:
        RuntimeError: there was none.
    """
    if _latest is None:
        raise RuntimeError("nothing has been profiled: run it in `with mg.profiler.profile():`")
    return _latest


class profile:
    """Record what runs in the ``with`` block, in all threads and workers.

    Example::

        with mg.profiler.profile() as prof:
            loss = model(x)
            loss.backward()
        print(prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=10))
        mg.profiler.report("backward.html")

    Args:
        activities: accepted; the CPU is all there is.
        schedule: for each step what to do (see :func:`schedule`); then call :meth:`step` at the
            end of each. Default: record everything.
        on_trace_ready: called with the profile at the end of each cycle that was recorded.
        record_shapes: keep the shapes of inputs, of a Node those of the gradients that flow in.
        profile_memory: keep the bytes of what operators and Nodes give.
        with_stack, with_flops, with_modules: not recorded; True is a warning.
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
    ) -> None:
        asked = {"with_stack": with_stack, "with_flops": with_flops, "with_modules": with_modules}
        for option, is_set in asked.items():
            if is_set:
                warnings.warn(f"profile({option}=True) records nothing more here", stacklevel=2)
        self.activities = set(activities or (ProfilerActivity.CPU,))
        self.record_shapes, self.profile_memory = record_shapes, profile_memory
        self.on_trace_ready = on_trace_ready
        self.step_num = 0
        self.current_action = ProfilerAction.NONE
        self._has_steps = schedule is not None
        self._schedule = schedule or _always
        self._step_started = 0.0
        self._metadata: dict[str, Any] = {}
        #: What was noted in this cycle, or in the last one that recorded.
        self.recording = self._new_recording()

    def _new_recording(self) -> Recording:
        return Recording(with_shapes=self.record_shapes, with_memory=self.profile_memory)

    # ------------------------------------------------------------------ from here to there

    def start(self) -> None:
        """Begin.

        Raises:
            RuntimeError: another profile is running.
        """
        global _started
        if _started is not None:
            raise RuntimeError("Profiler is already enabled: profiles cannot be nested")
        _started = self
        self._begin_step(self._schedule(self.step_num))

    def step(self) -> None:
        """The next step begins.

        Raises:
            RuntimeError: the profile is not running.
        """
        if _started is not self:
            raise RuntimeError("can't step a profile that is not running: call start() first")
        action = self._schedule(self.step_num + 1)
        self._end_step(goes_on=action in _RECORDS)
        self.step_num += 1
        self._begin_step(action)

    def stop(self) -> None:
        """End; what was recorded stays.

        Raises:
            RuntimeError: the profile is not running.
        """
        global _started
        if _started is not self:
            raise RuntimeError("can't stop a profile that is not running: call start() first")
        _started = None
        self._end_step(goes_on=False)
        self.current_action = ProfilerAction.NONE

    def _begin_step(self, action: ProfilerAction) -> None:
        global _latest
        self.current_action, self._step_started = action, perf_counter()
        if action in _RECORDS and RUNNING.recording is None:
            self.recording, _latest = self._new_recording(), self
            self.recording.begin()

    def _end_step(self, *, goes_on: bool) -> None:
        if self.current_action not in _RECORDS:
            return
        if self._has_steps:
            name = f"ProfilerStep#{self.step_num}"
            self.recording.note(name, ANNOTATION, self._step_started, perf_counter())
        if goes_on and self.current_action is ProfilerAction.RECORD:
            return
        self.recording.end()
        if self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # ------------------------------------------------------------------ what came of it

    def events(self) -> list[FunctionEvent]:
        """All ranges in the order of their beginnings."""
        return events_of(self.recording.ranges, self.recording.origin)

    @property
    def function_events(self) -> list[FunctionEvent]:
        """PyTorch's name of what ``events()`` gives."""
        return self.events()

    def key_averages(self, group_by_input_shape: bool = False) -> Averages:
        """The ranges added up by name; times are in microseconds.

        Args:
            group_by_input_shape: by name and shapes of inputs, which ``record_shapes`` records.
        """
        return Averages.of(self.events(), by_shape=group_by_input_shape)

    def add_metadata(self, key: str, value: str) -> None:
        """Add a top-level entry ``key`` with the text ``value`` to the exported trace."""
        self._metadata[key] = value

    def add_metadata_json(self, key: str, value: str) -> None:
        """Add a top-level entry ``key`` to the exported trace.

        Args:
            key: the entry's name.
            value: its value as a JSON document.

        Raises:
            ValueError: ``value`` is no JSON.
        """
        self._metadata[key] = json.loads(value)

    def export_chrome_trace(self, path: str) -> None:
        """Write the ranges to ``path``, for https://ui.perfetto.dev and chrome://tracing.

        The form is the JSON of Chromium's "Trace Event Format". Processes have their names and
        numbers. Arrows lead from operators to their Nodes and from Node to Node; counters show
        tasks that are ready or not done, and the bytes of gradients between tasks.
        """
        trace = {**trace_of(self.recording, self.events()), **self._metadata}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(trace, file)


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None
) -> Callable[[profile], None]:
    """An ``on_trace_ready`` that writes each trace to a file of its own in ``dir_name``.

    Args:
        dir_name: made if it is not there.
        worker_name: how the file's name begins; default: the machine's name and the process.
    """
    numbers = itertools.count()

    def write(found: profile) -> None:
        os.makedirs(dir_name, exist_ok=True)
        who = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        name = f"{who}.{time.time_ns()}{next(numbers)}.pt.trace.json"
        found.export_chrome_trace(os.path.join(dir_name, name))

    return write


class record_function:
    """A range of its own for the block or function that it is put around.

    Example::

        with mg.profiler.record_function("forward"):
            loss = model(x)

    Args:
        name: of the range.
        args: accepted; text that PyTorch shows beside the name.
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name, self.args = name, args
        self._started: list[float] = []

    def __enter__(self) -> record_function:
        self._started.append(perf_counter())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        started = self._started.pop()
        if RUNNING.recording is not None:
            RUNNING.recording.note(self.name, ANNOTATION, started, perf_counter())

    def __call__(self, function: F) -> F:
        name, args = self.name, self.args

        @functools.wraps(function)
        def wrapper(*positional: Any, **named: Any) -> Any:
            with record_function(name, args):
                return function(*positional, **named)

        return wrapper  # type: ignore[return-value]
