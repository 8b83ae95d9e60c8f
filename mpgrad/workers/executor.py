"""run_steps(): the executor. Runs Nodes one after another and adds up what flows between them.

Workers run NodeTasks with it, and the client those that belong to it. It knows arrays and rules,
not processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from mpgrad.autograd.running.validate_outputs import (
    add_notes,
    require_number,
    validate_output,
    with_zeros,
)
from mpgrad.base.device import CPU
from mpgrad.devices import device_arrays
from mpgrad.devices.device_arrays import CUDA
from mpgrad.graph.anomaly import refuse_nan
from mpgrad.wire.programs import Wiring

Apply: TypeAlias = Callable[[Any, list[Any], Sequence[bool]], Sequence[Any]]


class NodeStep:
    """One Node, ready to run.

    Attributes:
        wiring: what flows in and out, and where to.
        apply: ``(xp, grads, needs) -> gradients``; None for a Node that only passes its inputs on.
        release: called once the step has run.
        blamed: in anomaly mode, who is said to have returned NaN; else None.
    """

    __slots__ = ("apply", "blamed", "release", "wiring")

    def __init__(
        self, wiring: Wiring, apply: Apply | None, release: Callable[[], None] | None = None
    ) -> None:
        self.wiring, self.apply, self.release = wiring, apply, release
        self.blamed: str | None = None


class Placement:
    """Where results are born and go; the default leaves the former to NumPy."""

    def begin(self, step: NodeStep) -> None:
        """``step`` runs next."""

    def settle(self, step: NodeStep, grads: list[Any]) -> None:
        """``step`` has run: no result may lie where another output will be written."""

    def place_of_sum(self, step: int, input_nr: int) -> Any:
        """An array for the sum of what flows into that input; None: anywhere."""

    def publish(self) -> None:
        """Others wait for what has left so far, and what runs next takes long."""


class _TaskInflow:
    """The gradients that have flowed into the steps so far."""

    __slots__ = ("_placement", "_steps", "_sums", "_values", "_xp")

    def __init__(self, steps: Sequence[NodeStep], xp: Any, placement: Placement | None) -> None:
        self._steps, self._xp, self._placement = steps, xp, placement
        self._values: list[list[Any] | None] = [None] * len(steps)
        #: Inputs whose gradient is a sum made here, which may be added to in place.
        self._sums: set[tuple[int, int]] = set()

    def add(self, step: int, input_nr: int, value: Any) -> None:
        """One more contribution; None: nothing, but it has come."""
        values = self._values[step]
        if values is None:
            values = self._values[step] = [None] * len(self._steps[step].wiring.inputs)
        if value is None:
            return
        old = values[input_nr]
        if old is None:
            values[input_nr] = value
        elif CUDA.in_use and device_arrays.is_on_gpu(old):
            self._add_on_gpu(step, input_nr, old, value)
        elif (step, input_nr) in self._sums:
            old += value
        else:
            place = self._placement
            out = None if place is None else place.place_of_sum(step, input_nr)
            total = old + value if out is None else np.add(old, value, out)
            values[input_nr] = self._xp.asarray(total)
            self._sums.add((step, input_nr))

    def _add_on_gpu(self, step: int, input_nr: int, old: Any, value: Any) -> None:
        """All contributions lie on the same device: ``validate_output`` saw to that."""
        values = self._values[step]
        assert values is not None
        with device_arrays.on(device_arrays.device_of(old)):
            if (step, input_nr) in self._sums:
                old += value
            else:
                values[input_nr] = old + value
                self._sums.add((step, input_nr))

    def take(self, step: int) -> list[Any]:
        """The inputs of ``step``, which are complete; they are forgotten here."""
        values, self._values[step] = self._values[step], None
        return [None] * len(self._steps[step].wiring.inputs) if values is None else values


def run_steps(
    steps: Sequence[NodeStep],
    contributions: Iterable[tuple[int, int, Any]],
    emit: Callable[[int, Any], None],
    xp: Any,
    *,
    placement: Placement | None = None,
    timings: list[float] | None = None,
    on_failure: Callable[[int], None] | None = None,
) -> None:
    """Run ``steps`` in their order.

    Args:
        steps: consumers after producers.
        contributions: what flows in from outside: (step, input number, array or None), in the
            order in which it is to be added.
        emit: ``emit(number, array or None)`` receives what leaves.
        xp: the array namespace.
        placement: offers blocks for results.
        timings: gets when each step that has a rule started and ended (``perf_counter``).
        on_failure: gets the number of the step that raised, before the error goes on.
    """
    inflow = _TaskInflow(steps, xp, placement)
    add = inflow.add
    value: Any = None
    results: Any = None
    result: Any = None
    for target, input_nr, value in contributions:
        add(target, input_nr, value)
    # A step may change in place what nobody else holds, so this frame lets go what it passed on.
    value = None
    for index, step in enumerate(steps):
        values = inflow.take(index)
        wiring = step.wiring
        for input_nr, number in wiring.captures:
            emit(number, values[input_nr])
        if wiring.publishes and placement is not None:
            placement.publish()
        if step.apply is None:
            continue
        started = perf_counter() if timings is not None else 0.0
        try:
            if wiring.only_passes_on and step.blamed is None:
                results = [values[0] if needed else None for needed in wiring.needs]
            else:
                run = _apply_on_device if CUDA.in_use else _apply
                results = run(step, values, xp, placement)
        except Exception as error:
            add_notes(error, wiring.name, wiring.inputs, wiring.outputs, wiring.takes_undefined)
            if on_failure is not None:
                on_failure(index)
            raise
        if timings is not None:
            timings += (started, perf_counter())
        del values
        for route, result in zip(wiring.routes, results, strict=True):
            if type(route) is int:
                emit(route, result)
            elif route is not None:
                add(route[0], route[1], result)  # type: ignore[index]
        results = result = None
        if step.release is not None:
            step.release()


def _apply_on_device(
    step: NodeStep, values: list[Any], xp: Any, placement: Placement | None
) -> list[Any]:
    """As :func:`_apply`, on the device that ``InputBuffer::device`` of PyTorch chooses."""
    device = device_arrays.first_gpu(values)
    if device is CPU:
        return _apply(step, values, xp, placement)
    with device_arrays.on(device):
        return _apply(step, values, device_arrays.cuda_namespace(), placement)


def _apply(step: NodeStep, values: list[Any], xp: Any, placement: Placement | None) -> list[Any]:
    """The rule's validated results, all None where nothing is defined."""
    wiring = step.wiring
    if not wiring.takes_undefined:
        for value in values:
            if value is None:
                if all(value is None for value in values):
                    return [None] * len(wiring.routes)
                values = with_zeros(values, wiring.inputs, xp)
                break
    if placement is not None:
        placement.begin(step)
    results = step.apply(xp, values, wiring.needs)  # type: ignore[misc]
    require_number(wiring.name, results, len(wiring.routes))
    grads: list[Any] = []
    for result, expected in zip(results, wiring.outputs, strict=True):
        if result is None or expected is None:
            grads.append(None)
        else:
            grads.append(validate_output(wiring.name, len(grads), result, expected, xp))
    if step.blamed is not None:
        refuse_nan(step.blamed, grads)
    if placement is not None:
        placement.settle(step, grads)
    return grads
