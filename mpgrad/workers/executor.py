"""run_steps(): the executor. Runs Nodes one after another and adds up what flows between them.

A worker runs the few Nodes of one NodeTask with it, the ``local`` engine a whole graph; that is why
both give the same bits. It knows arrays and rules, not processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from mpgrad import device_arrays
from mpgrad.autograd.anomaly_mode import refuse_nan
from mpgrad.autograd.nodes.node import InputMetadata
from mpgrad.autograd.validate_outputs import validate_output
from mpgrad.device import CPU
from mpgrad.device_arrays import CUDA
from mpgrad.errors import add_note

Apply: TypeAlias = Callable[[Any, list[Any], Sequence[bool]], Sequence[Any]]


class Wiring:
    """What surrounds a Node's rule; the same in each step of a training loop.

    Attributes:
        name: of the Node.
        inputs: metadata of the gradients that flow in.
        outputs: metadata of those that flow out, None where nobody wants them.
        routes: per output (step, input number), a number for ``emit``, or None.
        captures: (input number, number for ``emit``): complete inputs that are wanted as they are.
        takes_undefined: the rule wants to run even if no gradient is defined (custom Functions).
        publishes: before it runs, ``Placement.publish`` is called.
        parts: of output 0 those that are computed; None: all of it.
        needs: for each output, whether it is wanted.
        passes_on: the rule gives out the gradient that came in, the very array, where one of the
            same shape and dtype is wanted.
        is_even: all wanted outputs look like the only input.
    """

    __slots__ = (
        "captures",
        "inputs",
        "is_even",
        "name",
        "needs",
        "outputs",
        "parts",
        "passes_on",
        "publishes",
        "routes",
        "takes_undefined",
    )

    def __init__(
        self,
        name: str,
        inputs: Sequence[InputMetadata],
        outputs: Sequence[InputMetadata | None],
        routes: Sequence[tuple[int, int] | int | None],
        captures: Sequence[tuple[int, int]] = (),
        *,
        takes_undefined: bool = False,
        passes_on: bool = False,
        publishes: bool = False,
        parts: tuple[int, int] | None = None,
    ) -> None:
        self.name = name
        self.inputs, self.outputs = inputs, outputs
        self.routes, self.captures = routes, captures
        self.takes_undefined, self.passes_on = takes_undefined, passes_on
        self.publishes, self.parts = publishes, parts
        self.needs = tuple([route is not None for route in routes])
        self.is_even = len(inputs) == 1 and all(
            meta is None or meta == inputs[0] for meta in outputs
        )


class Step:
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

    def begin(self, step: Step) -> None:
        """``step`` runs next."""

    def settle(self, step: Step, grads: list[Any]) -> None:
        """``step`` has run: no result may lie where another output will be written."""

    def place_of_sum(self, step: int, input_nr: int) -> Any:
        """An array for the sum of what flows into that input; None: anywhere."""

    def publish(self) -> None:
        """Others wait for what has left so far, and what runs next takes long."""


class _Inflow:
    """The gradients that have flowed into the steps so far."""

    __slots__ = ("_placement", "_steps", "_sums", "_values", "_xp")

    def __init__(self, steps: Sequence[Step], xp: Any, placement: Placement | None) -> None:
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
    steps: Sequence[Step],
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
    inflow = _Inflow(steps, xp, placement)
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
            if wiring.passes_on and wiring.is_even and step.blamed is None:
                results = [values[0] if needed else None for needed in wiring.needs]
            else:
                run = _apply_on_device if CUDA.in_use else _apply
                results = run(step, values, xp, placement)
        except Exception as error:
            add_note(error, f"in the backward graph at {_describe(wiring)}")
            if wiring.takes_undefined and "read-only" in str(error):
                add_note(error, COPY_FIRST)
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


#: Beside NumPy's error, which says only that an array is read-only.
COPY_FIRST = (
    "what backward gets may belong to others, too: copy it before you change it, with "
    "grad.clone() or numpy.array(grad)"
)


def _describe(wiring: Wiring) -> str:
    """Name, and shapes of the gradients that flow in and out."""
    inputs, outputs = (
        ", ".join("-" if meta is None else f"{meta.dtype}{list(meta.shape)}" for meta in metas)
        for metas in (wiring.inputs, wiring.outputs)
    )
    return f"{wiring.name}({inputs}) -> ({outputs})"


def _completed(wiring: Wiring, values: list[Any], xp: Any) -> list[Any]:
    """``values`` with zeros where nothing has flowed in."""
    return [
        _zeros(xp, meta) if value is None else value
        for value, meta in zip(values, wiring.inputs, strict=True)
    ]


def _apply_on_device(
    step: Step, values: list[Any], xp: Any, placement: Placement | None
) -> list[Any]:
    """As :func:`_apply`, on the device that ``InputBuffer::device`` of PyTorch chooses."""
    device = device_arrays.first_gpu(values)
    if device is CPU:
        return _apply(step, values, xp, placement)
    with device_arrays.on(device):
        return _apply(step, values, device_arrays.cuda_namespace(), placement)


def _apply(step: Step, values: list[Any], xp: Any, placement: Placement | None) -> list[Any]:
    """The rule's validated results, all None where nothing is defined."""
    wiring = step.wiring
    if not wiring.takes_undefined:
        for value in values:
            if value is None:
                if all(value is None for value in values):
                    return [None] * len(wiring.routes)
                values = _completed(wiring, values, xp)
                break
    if placement is not None:
        placement.begin(step)
    results = step.apply(xp, values, wiring.needs)  # type: ignore[misc]
    if len(results) != len(wiring.routes):
        raise RuntimeError(
            f"Function {wiring.name} returned an invalid number of gradients - expected "
            f"{len(wiring.routes)}, but got {len(results)}"
        )
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


def _zeros(xp: Any, meta: InputMetadata) -> Any:
    if meta.device is CPU:
        return xp.zeros(meta.shape, meta.dtype)
    return device_arrays.zeros(meta.shape, meta.dtype, meta.device)
