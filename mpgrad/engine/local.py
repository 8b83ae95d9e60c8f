"""run_local(): a backward in this process and on this thread. It is the reference for workers.

It is a loop over the Nodes in the order of the serial engine: sum the inputs, call the rule, pass
the results on. For a cached graph, the loop is written out as source
(:mod:`mpgrad.engine.compiled`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from mpgrad.arrays.cuda.device_arrays import CUDA
from mpgrad.autograd.frozen_graphs.cached_graphs import Remembered
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph, Rest, rest_of
from mpgrad.autograd.function_nodes.call_sites import call_in_words
from mpgrad.autograd.higher_order.recording import has_only_operators
from mpgrad.autograd.profiling.ranges import RUNNING, current_run
from mpgrad.autograd.running import engine_slot
from mpgrad.autograd.running.collector import HELD_ABOVE, collector_held
from mpgrad.autograd.running.node_loop import NodeLoop, Step
from mpgrad.engine import compiled
from mpgrad.engine.cost_learning import durations_us, teach
from mpgrad.engine.graph_steps import GraphSteps
from mpgrad.errors import add_note
from mpgrad.recording.dispatch.operator_call import cpu
from mpgrad.recording.graph.anomaly import explain_failure
from mpgrad.recording.graph.anomaly import mode as anomaly
from mpgrad.recording.tensors.storage import is_exclusive

#: The number of uses of a graph's tables after which it is compiled: source for a graph that comes
#: twice would take longer than it saves.
COMPILED_FROM_USE = 2


def run_local(frozen: FrozenGraph, *, teaches: bool = True) -> list[tuple[Any, bool]]:
    """Execute ``frozen`` in the serial engine's order.

    Args:
        frozen: the graph.
        teaches: whether the cost model learns from cached graphs, too.

    Returns:
        For each capture its array (None if undefined), and whether nobody else holds it.
    """
    if len(frozen.nodes) >= HELD_ABOVE and has_only_operators(frozen):
        with collector_held():
            return _run(frozen, teaches)
    return _run(frozen, teaches)


def run_local_until(
    frozen: FrozenGraph, stop: Callable[[], bool]
) -> tuple[list[tuple[Any, bool]], Rest | None]:
    """Execute ``frozen`` until ``stop()`` is true between two Nodes.

    Returns:
        As ``run_local``, and what has not run; None if everything has.
    """
    times: list[float] = []
    results, done, sums_of = _run_in_order(frozen, cpu, times, stop)
    _note_times(frozen, times, teaches=True, count=done)
    is_done = done == len(frozen.spec.order)
    return claim(results), None if is_done else rest_of(frozen, done, sums_of)


def run_local_ahead(
    frozen: FrozenGraph, before: Callable[[int, Callable[[int], Sequence[Any]]], None]
) -> list[tuple[Any, bool]]:
    """Execute ``frozen``, and say before each position of its order what has flowed so far.

    Args:
        frozen: the graph.
        before: gets the position, and what gives the sums so far of a Node's inputs.
    """
    return claim(_run_in_order(frozen, cpu, before=before)[0])


def _run(frozen: FrozenGraph, teaches: bool) -> list[tuple[Any, bool]]:
    known = frozen.remembered
    if known is not None and not (anomaly.enabled or CUDA.in_use):
        results = _run_compiled(frozen, known, teaches)
        if results is not None:
            return claim(results)
    return _run_nodes(frozen, teaches)


def _run_compiled(frozen: FrozenGraph, known: Remembered, teaches: bool) -> list[Any] | None:
    """The captured gradients of a graph that has come several times; None if it is not compiled."""
    program = known.program
    if program is None:
        if known.uses < COMPILED_FROM_USE:
            return None
        program = compiled.kept.add(known, frozen)
    if isinstance(program, str):
        return None
    learns = teaches and known.learns()
    times: list[float] | None = [] if learns or RUNNING.recording is not None else None
    started = perf_counter()
    results: list[Any] | None = program.run(frozen, times)
    if results is not None:
        if teaches:
            known.note((perf_counter() - started) * 1e6)
        if times:
            _note_times(frozen, times, teaches=learns)
    return results


def _run_nodes(frozen: FrozenGraph, teaches: bool) -> list[tuple[Any, bool]]:
    known = frozen.remembered
    learns = teaches if known is None else known.learns()
    if known is not None and not teaches:
        learns = known.uses < COMPILED_FROM_USE  # so that ``explain`` knows about its Functions
    times: list[float] | None = [] if learns or RUNNING.recording is not None else None
    started = perf_counter()
    results = gradients_of_nodes(frozen, cpu, times)
    if teaches and known is not None:
        known.note((perf_counter() - started) * 1e6)
    if times:
        _note_times(frozen, times, teaches=learns)
    return claim(results)


def gradients_of_nodes(frozen: FrozenGraph, xp: Any, times: list[float] | None = None) -> list[Any]:
    """The gradients that ``frozen`` captures, computed on the arrays of ``xp``.

    ``times`` gets when each rule began and ended (``perf_counter``).
    """
    return _run_in_order(frozen, xp, times)[0]


def _run_in_order(
    frozen: FrozenGraph,
    xp: Any,
    times: list[float] | None = None,
    stop: Callable[[], bool] | None = None,
    before: Callable[[int, Callable[[int], Sequence[Any]]], None] | None = None,
) -> tuple[list[Any], int, Callable[[int], list[Any]]]:
    """Run the Nodes, until ``stop()`` is true before one of them.

    Args:
        frozen: the graph.
        xp: the array namespace.
        times: gets when each rule began and ended (``perf_counter``).
        stop: None if all Nodes are to run.
        before: see ``run_local_ahead``.

    Returns:
        The captured gradients, how many Nodes of the order have had their turn, and what has flowed
        into each of the others.
    """
    order, captures = frozen.spec.order, frozen.spec.captures
    made = _steps_of(frozen, xp)
    first, results = made.first, list[Any]([None] * len(captures))
    loop = NodeLoop(
        first[-1],
        results.__setitem__,
        xp,
        times=times,
        on_failure=partial(_explain, frozen),
        nodes=frozen.nodes,
        keeps=frozen.keep_graph,
        other=partial(made.step, frozen),
    )
    for (at, input_nr), seed in zip(frozen.spec.seeds, frozen.seeds, strict=True):
        loop.flow(first[at] + input_nr, seed)
    turn = len(order)

    def sums_of(at: int) -> list[Any]:
        return loop.slots[first[at] : first[at + 1]]

    def until() -> Iterator[Step]:
        nonlocal turn
        steps = iter(made.of(frozen))
        for position, at in enumerate(order):
            if stop is not None and stop():
                turn = position
                return
            if before is not None:
                before(position, sums_of)
            if frozen.runs[at]:
                yield next(steps)

    loop.run(made.of(frozen) if stop is None and before is None else until())
    # The captures of Nodes that do not run: what has flowed there in the end.
    waiting = {*order[turn:]}
    ended = [
        (number, first[at] + input_nr)
        for number, (at, input_nr) in enumerate(captures)
        if not frozen.runs[at] and at not in waiting
    ]
    for number, slot in ended:
        results[number] = loop.slots[slot]
    for _, slot in ended:  # a result has one holder
        loop.slots[slot] = None
    return results, turn, sums_of


def _steps_of(frozen: FrozenGraph, xp: Any) -> GraphSteps:
    """The steps of a graph; those of a large one share functions, which are kept if it is
    cached."""
    is_large = len(frozen.nodes) > compiled.NODES_MAX
    if not is_large or xp is not cpu or anomaly.enabled or CUDA.in_use:
        return GraphSteps(frozen)
    known = frozen.remembered
    if known is None or known.uses < COMPILED_FROM_USE:
        return GraphSteps(frozen, shares_rules=True)
    if known.steps is None:
        known.steps = GraphSteps(frozen, shares_rules=True, is_cached=True)
    return known.steps  # type: ignore[no-any-return]


def _explain(frozen: FrozenGraph, failed: int, error: BaseException) -> None:
    """Where the forward of a Node that has failed was called."""
    if call := call_in_words(frozen.nodes[failed], frozen.nodes):
        add_note(error, call)
    if anomaly.enabled and not engine_slot.is_inside_rule():
        explain_failure(frozen.nodes[failed])


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
