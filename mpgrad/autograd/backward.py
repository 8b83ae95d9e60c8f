"""backward() and grad(): the entry points. Check, freeze, execute, commit."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, overload

from mpgrad.autograd.commit import commit, commit_recorded, recorded_results
from mpgrad.autograd.commit import results as results_of
from mpgrad.autograd.frozen_graphs import costs
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.autograd.grads_batch import results_of_batch
from mpgrad.autograd.profiling.ranges import span
from mpgrad.autograd.roots import (
    Wanted,
    as_tuple,
    check_roots,
    input_tuple,
    seed_tuple,
    wanted_grads,
    wanted_results,
    zeros_for,
)
from mpgrad.autograd.running import engine_slot
from mpgrad.autograd.running.running_backward import RunningBackward
from mpgrad.base.user_frames import hide_our_frames, level_of_caller
from mpgrad.recording.dispatch.overrides import call_override, is_overridden
from mpgrad.recording.graph.node import Edge
from mpgrad.recording.tensors.gradient_edge import GradientEdge
from mpgrad.recording.tensors.tensor import Tensor

#: A place in the graph: a root or an input.
Place: TypeAlias = Tensor | GradientEdge
#: The seeds of the roots.
Seeds: TypeAlias = Tensor | Sequence[Tensor | None] | None


def backward(
    tensors: Place | Sequence[Place],
    grad_tensors: Seeds = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Seeds = None,
    inputs: Place | Sequence[Place] | dict[str, Tensor] | None = None,
) -> None:
    """Add the gradients of ``tensors`` to the ``.grad`` of the leaves behind them.

    Args:
        tensors: the roots, Tensors or GradientEdges.
        grad_tensors: a seed of the root's shape for each; None stands for 1 at a scalar root.
        retain_graph: keep saved tensors, so that the graph can be used again; default
            ``create_graph``.
        create_graph: record the gradients' own computation.
        grad_variables: the deprecated name of ``grad_tensors``.
        inputs: accumulate only into these. A Tensor that is no leaf gets a ``.grad`` too.

    Raises:
        RuntimeError: a root does not require grad, a seed does not fit, or the graph was freed.
    """
    if grad_variables is not None:
        grad_tensors = _under_its_old_name(grad_variables, grad_tensors)
    try:
        _backward(tensors, grad_tensors, retain_graph, create_graph, inputs)
    except BaseException as error:
        hide_our_frames(error)
        raise


def _backward(
    tensors: Place | Sequence[Place],
    grad_tensors: Seeds,
    retain_graph: bool | None,
    create_graph: bool,
    inputs: Place | Sequence[Place] | dict[str, Tensor] | None,
) -> None:
    wanted_places = None if inputs is None else input_tuple(inputs, "backward")
    roots = as_tuple(tensors)
    asked = roots if wanted_places is None else (*roots, *wanted_places)
    if is_overridden(asked):
        call_override(
            backward, asked, roots, grad_tensors=grad_tensors, retain_graph=retain_graph,
            create_graph=create_graph, inputs=wanted_places,
        )  # fmt: skip
        return
    edges, seeds = check_roots(roots, seed_tuple(grad_tensors, len(roots)))
    wanted = None if wanted_places is None else wanted_grads(wanted_places)
    keep_graph = bool(create_graph if retain_graph is None else retain_graph)
    engine = engine_slot.current()
    frozen, seeds = _freeze(engine, edges, seeds, wanted, keep_graph, create_graph)
    with RunningBackward(create_graph=bool(create_graph), is_partial=inputs is not None):
        if create_graph:
            _warn_of_cycle()
            commit_recorded(frozen, engine_slot.execute_recorded(engine, frozen, seeds))
        else:
            commit(frozen, engine_slot.execute(engine, frozen))


def _under_its_old_name(grad_variables: Any, grad_tensors: Any) -> Any:
    warnings.warn(
        "`grad_variables` is deprecated. Use `grad_tensors` instead.", FutureWarning, stacklevel=3
    )
    if grad_tensors is not None:
        raise RuntimeError(
            "`grad_tensors` and `grad_variables` (deprecated) arguments both passed to "
            "`backward()`. Please only use `grad_tensors`."
        )
    return grad_variables


_has_warned_of_cycle = False


def _warn_of_cycle() -> None:
    """Once per process, as PyTorch does."""
    global _has_warned_of_cycle
    if _has_warned_of_cycle:
        return
    _has_warned_of_cycle = True
    warnings.warn(
        "Using backward() with create_graph=True will create a reference cycle between the "
        "parameter and its gradient which can cause a memory leak. We recommend using "
        "autograd.grad when creating the graph to avoid this. If you have to use this function, "
        "make sure to reset the .grad fields of your parameters to None after use to break the "
        "cycle and avoid the leak.",
        UserWarning,
        stacklevel=level_of_caller(),
    )


@overload
def grad(
    outputs: Place | Sequence[Place],
    inputs: dict[str, Tensor],
    grad_outputs: Seeds = ...,
    retain_graph: bool | None = ...,
    create_graph: bool = ...,
    only_inputs: bool = ...,
    allow_unused: bool | None = ...,
    is_grads_batched: bool = ...,
    materialize_grads: bool = ...,
) -> dict[str, Tensor | None]: ...


@overload
def grad(
    outputs: Place | Sequence[Place],
    inputs: Place | Sequence[Place],
    grad_outputs: Seeds = ...,
    retain_graph: bool | None = ...,
    create_graph: bool = ...,
    only_inputs: bool = ...,
    allow_unused: Literal[False] | None = ...,
    is_grads_batched: bool = ...,
    materialize_grads: bool = ...,
) -> tuple[Tensor, ...]: ...


@overload
def grad(
    outputs: Place | Sequence[Place],
    inputs: Place | Sequence[Place],
    grad_outputs: Seeds = ...,
    retain_graph: bool | None = ...,
    create_graph: bool = ...,
    only_inputs: bool = ...,
    allow_unused: bool | None = ...,
    is_grads_batched: bool = ...,
    materialize_grads: bool = ...,
) -> tuple[Tensor | None, ...]: ...


def grad(
    outputs: Place | Sequence[Place],
    inputs: Place | Sequence[Place] | dict[str, Tensor],
    grad_outputs: Seeds = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...] | dict[str, Tensor | None]:
    """The gradients of ``outputs`` with respect to ``inputs``; no ``.grad`` is touched.

    Args:
        outputs: the roots, Tensors or GradientEdges.
        inputs: any Tensors or GradientEdges of the graph.
        grad_outputs: as ``grad_tensors`` of :func:`backward`.
        retain_graph: keep saved tensors, so that the graph can be used again; default
            ``create_graph``.
        create_graph: record the gradients' own computation.
        only_inputs: deprecated and ignored.
        allow_unused: return None for an input that does not influence the outputs; default
            ``materialize_grads``.
        is_grads_batched: the first dimension of each ``grad_outputs`` counts seeds; the results
            have it too. The graph is run once for each seed.
        materialize_grads: return zeros instead of that None.

    Returns:
        A tuple with a Tensor (or None) for each input; a dict if ``inputs`` is one.

    Raises:
        ValueError: ``allow_unused=False`` with ``materialize_grads``.
        RuntimeError: there are no inputs, an input was not used, or as in :func:`backward`.
    """
    if not only_inputs:
        warnings.warn(
            "only_inputs argument is deprecated and is ignored now (defaults to True). To "
            "accumulate gradient for other parts of the graph, please use autograd.backward.",
            FutureWarning,
            stacklevel=2,
        )
    try:
        roots, wanted = as_tuple(outputs), input_tuple(inputs, "grad")
        options = _GradOptions(
            bool(create_graph if retain_graph is None else retain_graph),
            create_graph,
            _allows_unused(allow_unused, materialize_grads),
            is_grads_batched,
            materialize_grads,
        )
        if is_overridden((*roots, *wanted)):
            results = call_override(
                grad, (*roots, *wanted), roots, wanted, grad_outputs=grad_outputs,
                retain_graph=retain_graph, create_graph=create_graph, only_inputs=only_inputs,
                allow_unused=allow_unused, is_grads_batched=is_grads_batched,
                materialize_grads=materialize_grads,
            )  # fmt: skip
        else:
            results = _results(roots, wanted, grad_outputs, options)
    except BaseException as error:
        hide_our_frames(error)
        raise
    return dict(zip(inputs, results, strict=True)) if type(inputs) is dict else results


class _GradOptions(NamedTuple):
    """The options of ``grad()`` with their defaults."""

    keep_graph: bool
    create_graph: bool
    allow_unused: bool
    is_grads_batched: bool
    materialize_grads: bool


def _allows_unused(allow_unused: bool | None, materialize_grads: bool) -> bool:
    if materialize_grads and allow_unused is False:
        raise ValueError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, but got: "
            "allow_unused=False."
        )
    return materialize_grads if allow_unused is None else allow_unused


def _results(
    roots: Sequence[Any], wanted: Sequence[Any], grad_outputs: Any, options: _GradOptions
) -> tuple[Tensor | None, ...]:
    def run(seeds: Any, keep_graph: bool) -> list[Tensor | None]:
        return _gradients(roots, wanted, seeds, keep_graph, options.create_graph)

    if options.is_grads_batched:
        results = results_of_batch(
            run, roots, grad_outputs, options.keep_graph, options.create_graph
        )
    else:
        results = run(grad_outputs, options.keep_graph)
    if options.materialize_grads:
        results = [
            zeros_for(value, requires_grad=options.create_graph) if result is None else result
            for value, result in zip(wanted, results, strict=True)
        ]
    elif not options.allow_unused:
        _refuse_unused(results)
    return tuple(results)


def _gradients(
    roots: Sequence[Any],
    wanted: Sequence[Any],
    grad_outputs: Any,
    keep_graph: bool,
    create_graph: bool,
) -> list[Tensor | None]:
    """The gradient for each of ``wanted``; None where it does not influence ``roots``."""
    edges, seeds = check_roots(roots, seed_tuple(grad_outputs, len(roots)))
    engine, asked = engine_slot.current(), wanted_results(wanted)
    frozen, seeds = _freeze(engine, edges, seeds, asked, keep_graph, create_graph)
    with RunningBackward(create_graph=bool(create_graph), is_partial=True):
        if create_graph:
            gradients = engine_slot.execute_recorded(engine, frozen, seeds)
            return recorded_results(frozen, gradients, len(wanted))
        return results_of(frozen, engine_slot.execute(engine, frozen), len(wanted))


def _refuse_unused(results: Sequence[Tensor | None]) -> None:
    for index, result in enumerate(results):
        if result is None:
            raise RuntimeError(
                f"The differentiated Tensor at index {index} appears to not have been used in the "
                "graph. Set allow_unused=True if this is the desired behavior."
            )


def _freeze(
    engine: engine_slot.Executor,
    edges: list[Edge],
    seeds: list[Tensor | None],
    wanted: Wanted | None,
    keep_graph: bool,
    create_graph: bool,
) -> tuple[FrozenGraph, list[Tensor | None]]:
    """The frozen graph, and with ``create_graph`` its seeds with their history."""
    arrays = [None if seed is None else seed._array for seed in seeds]
    with span("freeze"):
        given = seeds if create_graph else arrays
        frozen = freeze(
            edges, given, wanted=wanted, keep_graph=keep_graph,
            cost=costs.estimate, renews_costs=engine.mode != "local",
        )  # fmt: skip
    if not create_graph:
        return frozen, []
    kept = list(frozen.seeds)
    arrays = [None if seed is None else seed._array for seed in kept]
    return frozen._replace(seeds=tuple(arrays)), kept
