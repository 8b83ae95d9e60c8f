"""run_local(): a backward in this process and on this thread. It is the reference for workers.

It is a loop over the Nodes in the order of the serial engine: sum the inputs, call the rule, pass
the results on. For a graph that comes again, the loop is written out as source
(:mod:`mpgrad.engine.compiled`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from mpgrad.autograd.freezing.client_nodes import HooksBefore, rule_of
from mpgrad.autograd.freezing.frozen_graph import FrozenGraph, Rest, expected_of, rest_of
from mpgrad.autograd.freezing.recurring_graphs import Remembered
from mpgrad.autograd.higher_order.recording import has_only_operators
from mpgrad.autograd.profiling.ranges import RUNNING, current_run
from mpgrad.autograd.running import engine_slot
from mpgrad.autograd.running.collector import HELD_ABOVE, collector_held
from mpgrad.autograd.running.validate_outputs import (
    add_notes,
    require_number,
    validate_output,
    with_zeros,
)
from mpgrad.base.device import CPU
from mpgrad.devices import device_arrays
from mpgrad.devices.device_arrays import CUDA
from mpgrad.dispatch.operator_call import cpu
from mpgrad.engine import compiled
from mpgrad.engine.learning import durations_us, teach
from mpgrad.engine.rule_loop import RuleLoop
from mpgrad.graph.anomaly import explain_failure, refuse_nan
from mpgrad.graph.anomaly import mode as anomaly
from mpgrad.graph.node import Node
from mpgrad.tensors.storage import is_exclusive

#: The number of uses of a graph's tables after which it is compiled: source for a graph that comes
#: twice would take longer than it saves.
COMPILED_FROM_USE = 2


def run_local(frozen: FrozenGraph) -> list[tuple[Any, bool]]:
    """Execute ``frozen`` in the serial engine's order.

    Returns:
        For each capture its array (None if undefined), and whether nobody else holds it.
    """
    if len(frozen.nodes) >= HELD_ABOVE and has_only_operators(frozen):
        with collector_held():
            return _run(frozen)
    return _run(frozen)


def run_local_until(
    frozen: FrozenGraph, stop: Callable[[], bool]
) -> tuple[list[tuple[Any, bool]], Rest | None]:
    """Execute ``frozen`` until ``stop()`` is true between two Nodes.

    Returns:
        As ``run_local``, and what has not run; None if everything has.
    """
    times: list[float] = []
    results, inflow, done = _run_in_order(frozen, cpu, times, stop=stop)
    _note_times(frozen, times, teaches=True, count=done)
    is_done = done == len(frozen.spec.order)
    rest = None if is_done else rest_of(frozen, done, inflow.take)
    return claim(results), rest


def _run(frozen: FrozenGraph) -> list[tuple[Any, bool]]:
    known = frozen.remembered
    if known is not None and not (anomaly.enabled or CUDA.in_use):
        results = _run_compiled(frozen, known)
        if results is not None:
            return claim(results)
    return _run_nodes(frozen)


def _run_compiled(frozen: FrozenGraph, known: Remembered) -> list[Any] | None:
    """The captured gradients of a graph that has come several times; None if it is not compiled."""
    program = known.program
    if program is None:
        if known.uses < COMPILED_FROM_USE:
            return None
        program = compiled.kept.add(known, frozen)
    if isinstance(program, str):
        return None
    learns = known.learns()
    times: list[float] | None = [] if learns or RUNNING.recording is not None else None
    started = perf_counter()
    results: list[Any] | None = program.run(frozen, times)
    if results is not None:
        known.note((perf_counter() - started) * 1e6)
        if times:
            _note_times(frozen, times, teaches=learns)
    return results


def _run_nodes(frozen: FrozenGraph) -> list[tuple[Any, bool]]:
    known = frozen.remembered
    learns = known is None or known.learns()
    times: list[float] | None = [] if learns or RUNNING.recording is not None else None
    started = perf_counter()
    loop = _rule_loop(frozen)
    if loop is None:
        results, _, _ = _run_in_order(frozen, cpu, times)
    else:
        results = loop.run(frozen, times, _run_node)
    if known is not None:
        known.note((perf_counter() - started) * 1e6)
    if times:
        _note_times(frozen, times, teaches=learns)
    return claim(results)


def _rule_loop(frozen: FrozenGraph) -> RuleLoop | None:
    """The loop of a large graph; None if it has none."""
    if len(frozen.nodes) <= compiled.NODES_MAX or anomaly.enabled or CUDA.in_use:
        return None
    known = frozen.remembered
    if known is None or known.uses < COMPILED_FROM_USE:
        return RuleLoop(frozen, comes_again=False)
    if known.loop is None:
        known.loop = RuleLoop(frozen, comes_again=True)
    return known.loop  # type: ignore[no-any-return]


def gradients_of_nodes(frozen: FrozenGraph, xp: Any, times: list[float] | None = None) -> list[Any]:
    """The gradients that ``frozen`` captures, computed on the arrays of ``xp``.

    ``times`` gets when each rule began and ended (``perf_counter``).
    """
    loop = _rule_loop(frozen) if xp is cpu else None
    if loop is not None:
        return loop.run(frozen, times, _run_node)
    return _run_in_order(frozen, xp, times)[0]


def _run_in_order(
    frozen: FrozenGraph,
    xp: Any,
    times: list[float] | None = None,
    stop: Callable[[], bool] | None = None,
) -> tuple[list[Any], _Inflow, int]:
    """Run the Nodes, until ``stop()`` is true before one of them.

    Args:
        frozen: the graph.
        xp: the array namespace.
        times: gets when each rule began and ended (``perf_counter``).
        stop: None if all Nodes are to run.

    Returns:
        The captured gradients, the sums that wait for Nodes that have not run, and how many have.
    """
    runs = frozen.runs
    inflow = _Inflow(frozen, np.asarray if xp is cpu else xp.asarray)
    wanted = _captured_inputs(frozen)
    results: list[Any] = [None] * len(frozen.spec.captures)
    grads: Any = None
    for position, at in enumerate(frozen.spec.order):
        if stop is not None and stop():
            return results, inflow, position
        grads = inflow.take(at)
        for input_nr, number in wanted.get(at, ()):
            results[number] = grads[input_nr]
        if not runs[at]:
            del grads  # a result has one holder
            continue
        outputs = _run_node(frozen, at, grads, xp, times)
        outputs.reverse()
        for edge in frozen.spec.nodes[at].edges:
            if edge is not None and (grad := outputs.pop()) is not None:
                inflow.add(edge[0], edge[1], grad)
        grad = None
    return results, inflow, len(frozen.spec.order)


def _run_node(
    frozen: FrozenGraph, at: int, grads: list[Any], xp: Any = cpu, times: list[float] | None = None
) -> list[Any]:
    """Run the rule of a Node, and empty its ``grads``.

    Returns:
        For each input that needs one the gradient as its consumer expects it, or None.
    """
    node, name, edges = frozen.nodes[at], frozen.spec.nodes[at].name, frozen.spec.nodes[at].edges
    call_rule = _call_rule if not CUDA.in_use else _call_rule_on_device
    is_watched = anomaly.enabled and not engine_slot.is_inside_rule()
    started = 0.0 if times is None else perf_counter()
    try:
        outputs = call_rule(node, grads, tuple([edge is not None for edge in edges]), xp)
        if times is not None:
            times += (started, perf_counter())
        require_number(name, outputs, len(edges))
        if is_watched:
            _refuse_nan(frozen, at, outputs)
        # A rule may change an array in place if nobody else holds it, so nobody keeps it.
        grads.clear()
        found = [
            None if grad is None else validate_output(name, number, grad, expected, xp)
            for number, (grad, expected) in enumerate(
                zip(outputs, expected_of(frozen, at), strict=True)
            )
            if expected is not None
        ]
    except Exception as error:
        add_notes(error, name, node.input_metadata, expected_of(frozen, at), node.takes_undefined)
        if is_watched:
            explain_failure(node)
        raise
    if not frozen.keep_graph:
        node.release_saved()
    return found


def _captured_inputs(frozen: FrozenGraph) -> dict[int, list[tuple[int, int]]]:
    """By Node: its captured inputs with the numbers of the results."""
    wanted: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, (at, input_nr) in enumerate(frozen.spec.captures):
        wanted[at].append((input_nr, number))
    return wanted


class _Inflow:
    """The sums of each Node's inputs so far: PyTorch's InputBuffers, summed as they arrive."""

    def __init__(self, frozen: FrozenGraph, asarray: Callable[[Any], Any]) -> None:
        self._nodes, self._asarray = frozen.nodes, asarray
        self._grads: list[list[Any] | None] = [None] * len(frozen.nodes)
        #: Inputs whose gradient is a sum made here, which may be added to in place.
        self._sums: set[tuple[int, int]] = set()
        for (at, input_nr), seed in zip(frozen.spec.seeds, frozen.seeds, strict=True):
            if seed is not None:
                self.add(at, input_nr, seed)

    def add(self, at: int, input_nr: int, grad: Any) -> None:
        """One more contribution."""
        grads = self._grads[at]
        if grads is None:
            grads = self._grads[at] = [None] * len(self._nodes[at].input_metadata)
        before = grads[input_nr]
        if before is None:
            grads[input_nr] = grad
        elif CUDA.in_use and device_arrays.is_on_gpu(before):
            # All contributions lie on the same device: ``validate_outputs`` has checked that.
            with device_arrays.on(device_arrays.device_of(before)):
                grads[input_nr] = self._sum(at, input_nr, before, grad)
        else:
            grads[input_nr] = self._asarray(self._sum(at, input_nr, before, grad))

    def _sum(self, at: int, input_nr: int, before: Any, grad: Any) -> Any:
        if (at, input_nr) in self._sums:
            before += grad
            return before
        self._sums.add((at, input_nr))
        return before + grad

    def take(self, at: int) -> list[Any]:
        """Remove and return the complete inputs of a Node."""
        grads, self._grads[at] = self._grads[at], None
        return [None] * len(self._nodes[at].input_metadata) if grads is None else grads


def _call_rule(node: Node, grads: list[Any], needs: tuple[bool, ...], xp: Any) -> Sequence[Any]:
    """The results of ``node``'s rule; none if all inputs are undefined."""
    if not node.takes_undefined:
        for grad in grads:
            if grad is None:
                if all(grad is None for grad in grads):
                    return [None] * len(needs)
                grads = with_zeros(grads, node.input_metadata, xp)
                break
        if node.passes_on and _is_even(node):
            return [grads[0] if needed else None for needed in needs]
    return rule_of(node)(xp, grads, needs)


def _is_even(node: Any) -> bool:
    """Whether the inputs of forward that need a gradient have the form of its result."""
    expected = node.input_metadata[0]
    return all(info is None or info == expected for info in node.input_info)


def _call_rule_on_device(
    node: Node, grads: list[Any], needs: tuple[bool, ...], xp: Any
) -> Sequence[Any]:
    """The same on the GPU of the first gradient that lies on one."""
    device = device_arrays.first_gpu(grads)
    with device_arrays.on(device):
        xp = xp if device is CPU else device_arrays.cuda_namespace()
        return _call_rule(node, grads, needs, xp)


def _refuse_nan(frozen: FrozenGraph, at: int, outputs: Sequence[Any]) -> None:
    """A hook may return NaN before a Node runs; the Node must not return it itself."""
    node = frozen.nodes[at]
    if anomaly.checks_nan and not isinstance(node, HooksBefore):
        name, expected = node.label, expected_of(frozen, at)
        validated = [
            None if meta is None or grad is None else validate_output(name, number, grad, meta, cpu)
            for number, (meta, grad) in enumerate(zip(expected, outputs, strict=True))
        ]
        refuse_nan(node.subject.name(), validated)


def _note_times(
    frozen: FrozenGraph, times: list[float], *, teaches: bool, count: int | None = None
) -> None:
    """Report the times of the rules of the first ``count`` Nodes (None: all) to the cost model and
    to an active profile."""
    recording = RUNNING.recording
    if not teaches and recording is None:
        return
    ran = [at for at in frozen.spec.order[:count] if frozen.runs[at]]
    if teaches:
        teach(frozen, list(zip(ran, durations_us(times), strict=True)))
    if recording is not None and not engine_slot.is_inside_rule():
        recording.note_nodes(current_run(), frozen, ran, times)


def claim(results: list[Any]) -> list[tuple[Any, bool]]:
    """Take the arrays out of ``results``, with whether nobody else holds the array or its memory.

    Only such an array may become a ``.grad``, which is changed in place later.
    """
    claimed = []
    for number in range(len(results)):
        array = results[number]
        # An array that occurs twice in the list keeps a reference there, so it is not exclusive.
        results[number] = None
        exclusive = array is not None and is_exclusive(array)
        claimed.append((array, exclusive))
    return claimed
