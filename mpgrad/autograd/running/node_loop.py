"""NodeLoop: the one loop over Nodes, in every process.

It is PyTorch's ``evaluate_function``: take what has flowed into a Node, run its rule, and let the
gradients flow on. ``local`` runs a graph with it, workers their NodeTasks, and the client its own
tasks. It knows arrays and rules, not graphs and not processes: whoever makes the steps has looked
everything else up before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from mpgrad.arrays.cuda import device_arrays
from mpgrad.arrays.cuda.device_arrays import CUDA
from mpgrad.autograd.running.validate_outputs import (
    add_notes,
    require_number,
    validate_output,
    with_zeros,
)
from mpgrad.base.device import CPU
from mpgrad.recording.graph.anomaly import refuse_nan
from mpgrad.recording.graph.node import InputMetadata
from mpgrad.wire.programs import Wiring

#: ``apply(xp, gradients, needs)``: the gradients of the outputs.
Apply: TypeAlias = Callable[[Any, list[Any], Sequence[bool]], Sequence[Any]]

#: A step: how it runs (one of the next); the Node; its input's slot, or the slice of its inputs'
#: slots; what runs; where that flows; captured inputs, and the numbers of the outputs they become.
#: A slot is the place of what flows into one input of a Node.
Step: TypeAlias = tuple[int, int, Any, Any, Any, Sequence[tuple[int, int]]]

#: The gradient of its one input is that of all its outputs, whose slots follow.
PASSED = 0
#: A function of its one input gives the gradient for one slot, or for several: for each the slot,
#: and the number of the result (-1: what flows in). Such a function checks its results itself.
ONE, SEVERAL = 1, 2
#: The same of several inputs.
JOINT = 3
#: A NodeStep: for each output the slot; ``~number`` of the output that it is emitted as; or None.
RULE = 4
#: The same, with a NodeStep that is made when its turn comes.
OTHER = 5


class NodeStep:
    """One Node, ready to run by its rule.

    Attributes:
        name: for messages.
        inputs: the metadata of the gradients that flow in.
        outputs: what the consumers of its outputs expect; None where there is none.
        needs: for each output, whether it is used.
        takes_undefined: whether the rule runs even if no gradient is defined.
        only_passes_on: whether every used output is the input itself, whatever the rule does.
        apply: its rule; None for a Node that only passes its inputs on.
        release: called once the step has run.
        blamed: in anomaly mode, the name to blame for a NaN; else None.
        wiring: of a Node in a task.
    """

    __slots__ = (
        "apply",
        "blamed",
        "inputs",
        "name",
        "needs",
        "only_passes_on",
        "outputs",
        "release",
        "takes_undefined",
        "wiring",
    )
    wiring: Wiring

    def __init__(
        self,
        name: str,
        inputs: Sequence[InputMetadata],
        outputs: Sequence[InputMetadata | None],
        needs: tuple[bool, ...],
        takes_undefined: bool,
        only_passes_on: bool,
        apply: Apply | None,
        release: Callable[[], None] | None,
    ) -> None:
        self.name, self.inputs, self.outputs, self.needs = name, inputs, outputs, needs
        self.takes_undefined, self.only_passes_on = takes_undefined, only_passes_on
        self.apply, self.release = apply, release
        self.blamed: str | None = None

    @classmethod
    def of_task(
        cls, wiring: Wiring, apply: Apply | None, release: Callable[[], None] | None = None
    ) -> NodeStep:
        """A Node in a task."""
        made = cls.__new__(cls)  # without a second call: there is one for each Node of a task
        made.name, made.inputs, made.outputs = wiring.name, wiring.inputs, wiring.outputs
        made.needs, made.takes_undefined = wiring.needs, wiring.takes_undefined
        made.only_passes_on = wiring.only_passes_on
        made.apply, made.release, made.blamed = apply, release, None
        made.wiring = wiring
        return made


class Destination:
    """Where results are written and published; by default NumPy allocates them."""

    def begin(self, step: NodeStep) -> None:
        """``step`` runs next."""

    def settle(self, step: NodeStep, grads: list[Any]) -> None:
        """``step`` has run: copy a result that lies where another output will be written."""

    def place_of_sum(self, slot: int) -> Any:
        """An array for the sum of that input's contributions; None: anywhere."""

    def publish(self) -> None:
        """Publish the outputs so far: other tasks wait for them, and the next step takes long."""


class NodeLoop:
    """One run over some steps.

    Args:
        count: the number of slots.
        emit: ``emit(number, array or None)`` receives each output.
        xp: the array namespace.
        destination: gives results their memory, and publishes them.
        times: gets when each rule began and ended (``perf_counter``).
        on_failure: receives the number of the Node that raised, and the error, which is raised
            then.
        nodes: for the functions of steps without a NodeStep.
        keeps: whether these keep saved tensors.
        other: ``other(at)``: the step of kind RULE in place of a function, which takes no undefined
            gradients.

    Attributes:
        slots: what has flowed into each input so far.
    """

    def __init__(
        self,
        count: int,
        emit: Callable[[int, Any], None],
        xp: Any,
        *,
        destination: Destination | None = None,
        times: list[float] | None = None,
        on_failure: Callable[[int, BaseException], None] | None = None,
        nodes: Sequence[Any] = (),
        keeps: bool = True,
        other: Callable[[int], Step] | None = None,
    ) -> None:
        self.slots: list[Any] = [None] * count
        #: Those whose gradient is a sum made here, which may be added to in place.
        self._sums: set[int] = set()
        self._emit, self._xp, self._destination = emit, xp, destination
        self._times, self._on_failure = times, on_failure
        self._nodes, self._keeps, self._other = nodes, keeps, other

    def flow(self, slot: int, grad: Any) -> None:
        """One more contribution to an input; None is an undefined one."""
        before = self.slots[slot]
        if before is None:
            self.slots[slot] = grad
        elif grad is None:
            return
        elif CUDA.in_use and device_arrays.is_on_gpu(before):
            # All contributions lie on the same device: ``validate_output`` has checked that.
            with device_arrays.on(device_arrays.device_of(before)):
                if slot in self._sums:
                    before += grad
                else:
                    self.slots[slot] = before + grad
                    self._sums.add(slot)
        elif slot in self._sums:
            before += grad
        else:
            to = self._destination
            out = None if to is None else to.place_of_sum(slot)
            total = before + grad if out is None else np.add(before, grad, out)
            self.slots[slot] = self._xp.asarray(total)
            self._sums.add(slot)

    def run(self, steps: Iterable[Step]) -> None:
        """Run ``steps`` in their order: consumers after producers."""
        slots, times, nodes = self.slots, self._times, self._nodes
        emit, flow, keeps = self._emit, self.flow, self._keeps
        grad: Any = None
        found: Any = None
        for step in steps:
            kind, at, place, run, targets, captures = step
            if kind == RULE:
                if place.__class__ is int:
                    grads, slots[place] = [slots[place]], None
                else:
                    grads, slots[place] = slots[place], [None] * len(slots[place])
                self._run_rule(at, grads, run, targets, captures)
                continue
            if kind == JOINT:
                self._run_joint(step)
                continue
            if kind == OTHER or slots[place] is None:
                self._run_other(step)
                continue
            grad, slots[place] = slots[place], None
            for _, number in captures:
                emit(number, grad)
            if kind == PASSED:
                if times is not None:
                    times += (perf_counter(), perf_counter())
                for slot in targets:
                    if slots[slot] is None:
                        slots[slot] = grad
                    else:
                        flow(slot, grad)
            else:
                try:
                    found = run(nodes[at], grad, keeps, times)
                except Exception as error:
                    self._note_failure(error, at)
                    raise
                if kind == ONE and slots[targets] is None:
                    slots[targets] = found
                elif kind == ONE:
                    flow(targets, found)
                else:
                    self._spread(found, grad, targets)
            # A rule may change an array in place if nobody else holds it.
            grad = found = None

    def _run_joint(self, step: Step) -> None:
        """Run a function of several inputs."""
        _, at, place, run, targets, captures = step
        grads = self.slots[place]
        if [1 for grad in grads if grad is None]:
            self._run_other(step)
            return
        self.slots[place] = [None] * len(grads)
        for input_nr, number in captures:
            self._emit(number, grads[input_nr])
        try:
            found = run(self._nodes[at], *grads, self._keeps, self._times)
        except Exception as error:
            self._note_failure(error, at)
            raise
        self._spread(found, grads[0], targets)

    def _run_other(self, step: Step) -> None:
        """Run a Node by its rule: it has no function, or a gradient is undefined."""
        assert self._other is not None
        self.run([(*self._other(step[1])[:5], step[5])])

    def _spread(self, found: Any, grad: Any, targets: Sequence[tuple[int, int]]) -> None:
        """The results of a function, or ``grad``, flow on."""
        several = found if found.__class__ is tuple else (found,)
        for slot, number in targets:
            self.flow(slot, grad if number < 0 else several[number])

    def _note_failure(self, error: BaseException, at: int, step: NodeStep | None = None) -> None:
        """Add to ``error`` the Node whose rule raised it."""
        if step is None:
            assert self._other is not None
            step = self._other(at)[3]
        assert step is not None
        add_notes(error, step.name, step.inputs, step.outputs, step.takes_undefined)
        if self._on_failure is not None:
            self._on_failure(at, error)

    def _run_rule(
        self,
        at: int,
        grads: list[Any],
        step: NodeStep,
        targets: Sequence[int | None],
        captures: Sequence[tuple[int, int]],
    ) -> None:
        """Run a Node by its rule on ``grads``, which have been taken out of its slots."""
        times, destination = self._times, self._destination
        for input_nr, number in captures:
            self._emit(number, grads[input_nr])
        if destination is not None and step.wiring.publishes:
            destination.publish()
        if step.apply is None:
            return
        started = perf_counter() if times is not None else 0.0
        try:
            if step.only_passes_on and step.blamed is None:
                results = [grads[0] if needed else None for needed in step.needs]
            elif CUDA.in_use:
                results = _apply_on_device(step, grads, self._xp, destination)
            else:
                results = _apply(step, grads, self._xp, destination)
        except BaseException as error:
            self._note_failure(error, at, step)
            raise
        if times is not None:
            times += (started, perf_counter())
        # A rule may change an array in place if nobody else holds it.
        grads.clear()
        slots = self.slots
        for target, grad in zip(targets, results, strict=True):
            if target is None:
                continue
            if target < 0:
                self._emit(~target, grad)
            elif slots[target] is None:
                slots[target] = grad
            else:
                self.flow(target, grad)
        if step.release is not None:
            step.release()


def run_task(
    parts: Sequence[NodeStep],
    contributions: Iterable[tuple[int, int, Any]],
    emit: Callable[[int, Any], None],
    xp: Any,
    *,
    destination: Destination | None = None,
    times: list[float] | None = None,
    on_failure: Callable[[int, BaseException], None] | None = None,
) -> None:
    """Run the Nodes of a task.

    Args:
        parts: consumers after producers.
        contributions: the contributions from outside: (Node, input number, array or None), in
            the order in which they are added.
        emit, xp, destination, times, on_failure: as in NodeLoop.
    """
    first = first_slots(parts)
    loop = NodeLoop(
        first[-1], emit, xp, destination=destination, times=times, on_failure=on_failure
    )
    value: Any = None
    for at, input_nr, value in contributions:
        loop.flow(first[at] + input_nr, value)
    # A rule may change an array in place if nobody else holds it.
    value = None
    loop.run(_steps_of(parts, first))


def first_slots(parts: Sequence[NodeStep]) -> Sequence[int]:
    """For each Node of a task the slot of its first input; at the end the number of slots."""
    return [*accumulate([len(part.wiring.inputs) for part in parts], initial=0)]


def _steps_of(parts: Sequence[NodeStep], first: Sequence[int]) -> Iterator[Step]:
    is_single = first[-1] == len(parts)  # then a slot has the number of its Node
    for at, part in enumerate(parts):
        wiring = part.wiring
        if is_single:
            yield RULE, at, at, part, wiring.single_slots, wiring.captures
            continue
        slots = [
            ~route if type(route) is int else route and first[route[0]] + route[1]  # type: ignore[index]
            for route in wiring.routes
        ]
        start, end = first[at], first[at + 1]
        place = start if end - start == 1 else slice(start, end)
        yield RULE, at, place, part, slots, wiring.captures


def _apply_on_device(
    step: NodeStep, grads: list[Any], xp: Any, destination: Destination | None
) -> list[Any]:
    """As :func:`_apply`, on the device that ``InputBuffer::device`` of PyTorch chooses."""
    device = device_arrays.first_gpu(grads)
    if device is CPU:
        return _apply(step, grads, xp, destination)
    with device_arrays.on(device):
        return _apply(step, grads, device_arrays.cuda_namespace(), destination)


def _apply(step: NodeStep, grads: list[Any], xp: Any, destination: Destination | None) -> list[Any]:
    """The validated results of the rule; all None if all inputs are undefined."""
    if not step.takes_undefined:
        for grad in grads:
            if grad is None:
                if all(grad is None for grad in grads):
                    return [None] * len(step.outputs)
                grads = with_zeros(grads, step.inputs, xp)
                break
        grad = None
    if destination is not None:
        destination.begin(step)
    outputs = step.outputs
    results = step.apply(xp, grads, step.needs)  # type: ignore[misc]
    if len(results) != len(outputs):
        require_number(step.name, results, len(outputs))
    found: list[Any] = []
    for result, expected in zip(results, outputs, strict=True):
        if result is None or expected is None:
            found.append(None)
        elif (
            type(result) is np.ndarray
            and result.shape == expected.shape
            and result.dtype is expected.dtype
            and result.flags.c_contiguous
            and expected.device is CPU
        ):
            found.append(result)  # nearly always: without a call
        else:
            found.append(validate_output(step.name, len(found), result, expected, xp))
    if step.blamed is not None:
        refuse_nan(step.blamed, found)
    if destination is not None:
        destination.settle(step, found)
    return found
