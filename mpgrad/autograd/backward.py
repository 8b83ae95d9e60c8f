"""backward() and grad(): the doors to the engine. Check, freeze, execute, commit."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.autograd import costs, engine_slot
from mpgrad.autograd.commit import commit, commit_recorded, recorded_results
from mpgrad.autograd.commit import results as results_of
from mpgrad.autograd.freeze import FrozenGraph, freeze
from mpgrad.autograd.node import Edge
from mpgrad.autograd.roots import (
    Wanted,
    as_tuple,
    check_roots,
    input_tuple,
    seed_tuple,
    wanted_grads,
    wanted_results,
)
from mpgrad.autograd.running import RunningBackward
from mpgrad.tensor import Tensor


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Tensor | Sequence[Tensor | None] | None = None,
    inputs: Tensor | Sequence[Tensor] | dict[str, Tensor] | None = None,
) -> None:
    """Add the gradients of ``tensors`` to the ``.grad`` of the leaves behind them.

    Args:
        tensors: the roots.
        grad_tensors: a seed of the root's shape for each; None stands for 1 at a scalar root.
        retain_graph: keep saved tensors, so that the graph can be used again; default
            ``create_graph``.
        create_graph: record the gradients' own computation.
        grad_variables: the deprecated name of ``grad_tensors``.
        inputs: accumulate only into these tensors.

    Raises:
        RuntimeError: a root does not require grad, a seed does not fit, or the graph was used up.
    """
    if grad_variables is not None:
        grad_tensors = _under_its_old_name(grad_variables, grad_tensors)
    wanted_tensors = None if inputs is None else input_tuple(inputs, "backward")
    roots = as_tuple(tensors)
    edges, seeds = check_roots(roots, seed_tuple(grad_tensors, len(roots)))
    wanted = None if wanted_tensors is None else wanted_grads(wanted_tensors)
    keep_graph = create_graph if retain_graph is None else retain_graph
    frozen, seeds = _freeze(edges, seeds, wanted, keep_graph)
    with RunningBackward(create_graph=create_graph, is_partial=inputs is not None):
        if create_graph:
            commit_recorded(frozen, engine_slot.execute_recorded(frozen, seeds))
        else:
            commit(frozen, engine_slot.execute(frozen))


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


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor] | dict[str, Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Any:
    """The gradients of ``outputs`` with respect to ``inputs``; no ``.grad`` is touched.

    Args:
        outputs: the roots.
        inputs: any tensors of the graph.
        grad_outputs: as ``grad_tensors`` of :func:`backward`.
        retain_graph: keep saved tensors, so that the graph can be used again; default
            ``create_graph``.
        create_graph: record the gradients' own computation.
        only_inputs: deprecated and ignored.
        allow_unused: give None for an input that does not influence the outputs; default
            ``materialize_grads``.
        is_grads_batched: not supported yet.
        materialize_grads: give zeros instead of that None.

    Returns:
        A tuple with a Tensor (or None) for each input; a dict if ``inputs`` is one.

    Raises:
        ValueError: ``allow_unused=False`` with ``materialize_grads``.
        RuntimeError: there are no inputs, an input was not used, or as in :func:`backward`.
    """
    if allow_unused is False and materialize_grads:
        raise ValueError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, but got: "
            "allow_unused=False."
        )
    if not only_inputs:
        warnings.warn(
            "only_inputs argument is deprecated and is ignored now (defaults to True). To "
            "accumulate gradient for other parts of the graph, please use autograd.backward.",
            FutureWarning,
            stacklevel=2,
        )
    if is_grads_batched:
        raise NotImplementedError("is_grads_batched=True is not supported yet")
    roots, wanted_tensors = as_tuple(outputs), input_tuple(inputs, "grad")
    edges, seeds = check_roots(roots, seed_tuple(grad_outputs, len(roots)))
    wanted = wanted_results(wanted_tensors)
    keep_graph = create_graph if retain_graph is None else retain_graph
    frozen, seeds = _freeze(edges, seeds, wanted, keep_graph)
    count = len(wanted_tensors)
    with RunningBackward(create_graph=create_graph, is_partial=True):
        if create_graph:
            gradients = engine_slot.execute_recorded(frozen, seeds)
            results = recorded_results(frozen, gradients, count)
        else:
            results = results_of(frozen, engine_slot.execute(frozen), count)
    if not (allow_unused or materialize_grads):
        _refuse_unused(results)
    if materialize_grads:
        results = [
            Tensor(np.zeros(tensor.shape, tensor.dtype)) if result is None else result
            for tensor, result in zip(wanted_tensors, results, strict=True)
        ]
    return dict(zip(inputs, results, strict=True)) if type(inputs) is dict else tuple(results)


def _refuse_unused(results: Sequence[Tensor | None]) -> None:
    for index, result in enumerate(results):
        if result is None:
            raise RuntimeError(
                f"The differentiated Tensor at index {index} appears to not have been used in the "
                "graph. Set allow_unused=True if this is the desired behavior."
            )


def _freeze(
    edges: list[Edge], seeds: list[Tensor | None], wanted: Wanted | None, keep_graph: bool
) -> tuple[FrozenGraph, list[Tensor | None]]:
    """The frozen graph, and those of the seeds that flow into it, with their history."""
    frozen = freeze(edges, seeds, wanted=wanted, keep_graph=keep_graph, cost=costs.estimate)
    arrays = tuple(None if seed is None else seed._array for seed in frozen.seeds)
    return frozen._replace(seeds=arrays), list(frozen.seeds)
