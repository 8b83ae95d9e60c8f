"""run_steps(): the executor. It runs Nodes one after another and sums the gradients between them.

Workers run NodeTasks with it, and the client its own tasks. It knows arrays and rules, not
processes.
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
        wiring: the sources and targets of its gradients.
        apply: ``(xp, grads, needs) -> gradients``; None for a Node that only passes its inputs on.
        release: called once the step has run.
        blamed: in anomaly mode, the name to blame for a NaN; else None.
    """

    __slots__ = ("apply", "blamed", "release", "wiring")

    def __init__(
        self, wiring: Wiring, apply: Apply | None, release: Callable[[], None] | None = None
    ) -> None:
        self.wiring, self.apply, self.release = wiring, apply, release
        self.blamed: str | None = None


class Destination:
    """Where results are written and published; by default NumPy allocates them."""

    def begin(self, step: NodeStep) -> None:
        """``step`` runs next."""

    def settle(self, step: NodeStep, grads: list[Any]) -> None:
        """``step`` has run: copy a result that lies where another output will be written."""

    def place_of_sum(self, step: int, input_nr: int) -> Any:
        """An array for the sum of that input's contributions; None: anywhere."""

    def publish(self) -> None:
        """Publish the outputs so far: other tasks wait for them, and the next step takes long."""


class _TaskInflow:
    """The sums of the steps' inputs so far."""

    __slots__ = ("_destination", "_steps", "_sums", "_values", "_xp")

    def __init__(self, steps: Sequence[NodeStep], xp: Any, destination: Destination | None) -> None:
        self._steps, self._xp, self._destination = steps, xp, destination
        self._values: list[list[Any] | None] = [None] * len(steps)
        #: Inputs whose gradient is a sum made here, which may be added to in place.
        self._sums: set[tuple[int, int]] = set()

    def add(self, step: int, input_nr: int, value: Any) -> None:
        """Add a contribution; None is an undefined one."""
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
            to = self._destination
            out = None if to is None else to.place_of_sum(step, input_nr)
            total = old + value if out is None else np.add(old, value, out)
            values[input_nr] = self._xp.asarray(total)
            self._sums.add((step, input_nr))

    def _add_on_gpu(self, step: int, input_nr: int, old: Any, value: Any) -> None:
        """Add on the GPU: ``validate_output`` has checked that all lie on the same device."""
        values = self._values[step]
        assert values is not None
        with device_arrays.on(device_arrays.device_of(old)):
            if (step, input_nr) in self._sums:
                old += value
            else:
                values[input_nr] = old + value
                self._sums.add((step, input_nr))

    def take(self, step: int) -> list[Any]:
        """Remove and return the complete inputs of ``step``."""
        values, self._values[step] = self._values[step], None
        return [None] * len(self._steps[step].wiring.inputs) if values is None else values


def run_steps(
    steps: Sequence[NodeStep],
    contributions: Iterable[tuple[int, int, Any]],
    emit: Callable[[int, Any], None],
    xp: Any,
    *,
    destination: Destination | None = None,
    timings: list[float] | None = None,
    on_failure: Callable[[int], None] | None = None,
) -> None:
    """Run ``steps`` in their order.

    Args:
        steps: consumers after producers.
        contributions: the contributions from outside: (step, input number, array or None), in
            the order in which they are added.
        emit: ``emit(number, array or None)`` receives each output.
        xp: the array namespace.
        destination: gives results their memory, and publishes them.
        timings: receives the start and end of each step with a rule (``perf_counter``).
        on_failure: receives the number of the step that raised, before the error is raised.
    """
    inflow = _TaskInflow(steps, xp, destination)
    add = inflow.add
    value: Any = None
    results: Any = None
    result: Any = None
    for target, input_nr, value in contributions:
        add(target, input_nr, value)
    # A step may change an array in place if nobody else holds it, so this frame drops it.
    value = None
    for index, step in enumerate(steps):
        values = inflow.take(index)
        wiring = step.wiring
        for input_nr, number in wiring.captures:
            emit(number, values[input_nr])
        if wiring.publishes and destination is not None:
            destination.publish()
        if step.apply is None:
            continue
        started = perf_counter() if timings is not None else 0.0
        try:
            if wiring.only_passes_on and step.blamed is None:
                results = [values[0] if needed else None for needed in wiring.needs]
            else:
                run = _apply_on_device if CUDA.in_use else _apply
                results = run(step, values, xp, destination)
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
    step: NodeStep, values: list[Any], xp: Any, destination: Destination | None
) -> list[Any]:
    """As :func:`_apply`, on the device that ``InputBuffer::device`` of PyTorch chooses."""
    device = device_arrays.first_gpu(values)
    if device is CPU:
        return _apply(step, values, xp, destination)
    with device_arrays.on(device):
        return _apply(step, values, device_arrays.cuda_namespace(), destination)


def _apply(
    step: NodeStep, values: list[Any], xp: Any, destination: Destination | None
) -> list[Any]:
    """The validated results of the rule; all None if all inputs are undefined."""
    wiring = step.wiring
    if not wiring.takes_undefined:
        for value in values:
            if value is None:
                if all(value is None for value in values):
                    return [None] * len(wiring.routes)
                values = with_zeros(values, wiring.inputs, xp)
                break
    if destination is not None:
        destination.begin(step)
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
    if destination is not None:
        destination.settle(step, grads)
    return grads
