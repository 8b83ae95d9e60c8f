"""backward() and grad(): check what the caller gave, freeze, execute, commit.

Workers only produce gradients. They are added to ``.grad`` here, when all of them are known: all or
none, so that a failed backward leaves every ``.grad`` as it was.
"""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mpgrad.autograd import costs, engine_slot
from mpgrad.autograd.accumulate_grad import AccumulateGrad
from mpgrad.autograd.freeze import FrozenGraph, LeafSink, ResultSink, Sink, freeze
from mpgrad.autograd.node import Edge, InputMetadata
from mpgrad.autograd.validate_outputs import validate_output
from mpgrad.dispatch import cpu
from mpgrad.storage import adopt
from mpgrad.tensor import Tensor, gradient_edge, metadata_of


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Add the gradients of ``tensors`` to the ``.grad`` of the leaves behind them.

    Args:
        tensors: the roots.
        grad_tensors: a seed of the root's shape for each; None stands for 1 at a scalar root.
        retain_graph: keep saved tensors, so that the graph can be used again.
        create_graph: record the gradients' own computation.
        inputs: accumulate only into these tensors.

    Raises:
        RuntimeError: a root does not require grad, a seed does not fit, or the graph was used up.
    """
    roots = _as_tuple(tensors)
    if inputs is not None:
        inputs = _as_tuple(inputs)
        if not inputs:
            raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    edges, seeds = _roots(roots, _seed_tuple(grad_tensors, len(roots)))
    wanted = None if inputs is None else [_accumulated(t) for t in dict.fromkeys(inputs)]
    _refuse_create_graph(create_graph)
    frozen = _freeze(edges, seeds, wanted, retain_graph)
    commit(frozen, engine_slot.execute(frozen))


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of ``outputs`` with respect to ``inputs``; no ``.grad`` is touched.

    Args:
        outputs: the roots.
        inputs: any tensors of the graph.
        grad_outputs: as ``grad_tensors`` of :func:`backward`.
        retain_graph: keep saved tensors, so that the graph can be used again.
        create_graph: record the gradients' own computation.
        allow_unused: give None for an input that does not influence the outputs.
        materialize_grads: give zeros instead of that None.

    Raises:
        ValueError: there are no inputs, or ``allow_unused=False`` with ``materialize_grads``.
        RuntimeError: an input was not used, or as in :func:`backward`.
    """
    roots, wanted_tensors = _as_tuple(outputs), _as_tuple(inputs)
    if not wanted_tensors:
        raise ValueError("grad requires non-empty inputs.")
    if allow_unused is False and materialize_grads:
        raise ValueError("Expected allow_unused to be True or not passed with materialize_grads")
    if allow_unused is None:
        allow_unused = materialize_grads
    edges, seeds = _roots(roots, _seed_tuple(grad_outputs, len(roots)))
    wanted: list[tuple[Edge, Sink | None]] = [
        (_edge_of_input(tensor), ResultSink(number)) for number, tensor in enumerate(wanted_tensors)
    ]
    _refuse_create_graph(create_graph)
    frozen = _freeze(edges, seeds, wanted, retain_graph)
    results = _results(frozen, engine_slot.execute(frozen), len(wanted_tensors))
    for index, (tensor, result) in enumerate(zip(wanted_tensors, results, strict=True)):
        if result is not None:
            continue
        if not allow_unused:
            raise RuntimeError(
                "One of the differentiated Tensors appears to not have been used in the graph. Set "
                f"allow_unused=True if this is the desired behavior. (It is input {index}, of "
                f"shape {tensor.shape}.)"
            )
        if materialize_grads:
            results[index] = Tensor(np.zeros(tensor.shape, tensor.dtype))
    return tuple(results)


def _refuse_create_graph(create_graph: bool) -> None:
    if create_graph:
        raise NotImplementedError("create_graph=True is not supported yet")


def _freeze(
    edges: list[Edge],
    seeds: list[Any],
    wanted: list[tuple[Edge, Sink | None]] | None,
    retain_graph: bool | None,
) -> FrozenGraph:
    return freeze(edges, seeds, wanted=wanted, keep_graph=bool(retain_graph), cost=costs.estimate)


# ---------------------------------------------------------------------- arguments


def _as_tuple(tensors: Any) -> tuple[Any, ...]:
    found = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)
    for value in found:
        if not isinstance(value, Tensor):
            raise TypeError(f"expected Tensors, but got a {type(value).__name__}")
    return found


def _seed_tuple(grads: Any, count: int) -> tuple[Any, ...]:
    if grads is None:
        return (None,) * count
    if isinstance(grads, Tensor):
        grads = (grads,)
    if not isinstance(grads, list | tuple):
        raise TypeError(f"gradients can be either Tensors or None, but got {type(grads).__name__}")
    seeds = tuple(grads)
    if len(seeds) != count:
        raise RuntimeError(f"got {count} tensors and {len(seeds)} gradients")
    return seeds


def _roots(tensors: tuple[Tensor, ...], grads: tuple[Any, ...]) -> tuple[list[Edge], list[Any]]:
    edges = []
    for index, tensor in enumerate(tensors):
        if not tensor._requires_grad:
            raise RuntimeError(
                f"element {index} of tensors does not require grad and does not have a grad_fn"
            )
        edges.append(gradient_edge(tensor))
    return edges, [_seed(tensor, seed) for tensor, seed in zip(tensors, grads, strict=True)]


def _seed(tensor: Tensor, seed: Any) -> Any:
    """The array that flows into a root."""
    if seed is None:
        if tensor._array.size != 1:
            raise RuntimeError(
                "grad can be implicitly created only for scalar outputs, but the output has shape "
                f"{tensor.shape}: pass a gradient of that shape"
            )
        if tensor.dtype.kind != "f":
            raise RuntimeError(
                "grad can be implicitly created only for real scalar outputs but got "
                f"{tensor.dtype}"
            )
        return np.ones(tensor.shape, tensor.dtype)
    if not isinstance(seed, Tensor):
        raise TypeError(f"gradients can be either Tensors or None, but got {type(seed).__name__}")
    if seed.shape != tensor.shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output has a shape of {seed.shape} and output has a shape of "
            f"{tensor.shape}."
        )
    if (seed.dtype.kind == "c") != (tensor.dtype.kind == "c"):
        raise RuntimeError(
            "For complex Tensors, both grad_output and output are required to have the same dtype, "
            f"but got {seed.dtype} and {tensor.dtype}"
        )
    expected = metadata_of(tensor)
    return validate_output("", 0, seed._array, InputMetadata(*expected), cpu)


def _edge_of_input(tensor: Tensor) -> Edge:
    if not tensor._requires_grad:
        raise RuntimeError("One of the differentiated Tensors does not require grad")
    return gradient_edge(tensor)


def _accumulated(tensor: Tensor) -> tuple[Edge, Sink | None]:
    """An input whose ``.grad`` is wanted; a non-leaf keeps it as after ``retain_grad()``."""
    edge = _edge_of_input(tensor)
    if isinstance(edge.function, AccumulateGrad):
        return edge, LeafSink(edge.function)
    tensor.retain_grad()
    return edge, None


# ---------------------------------------------------------------------- results


def _results(
    frozen: FrozenGraph, captured: list[tuple[Any, bool]], count: int
) -> list[Tensor | None]:
    results: list[Tensor | None] = [None] * count
    for sink, (array, exclusive) in zip(frozen.sinks, captured, strict=True):
        if isinstance(sink, ResultSink) and array is not None:
            results[sink.number] = Tensor(array if exclusive else adopt(array))
    commit(frozen, captured)
    return results


def commit(frozen: FrozenGraph, captured: list[tuple[Any, bool]]) -> None:
    """Add the captured gradients to ``.grad``: first all checks, then all additions.

    Raises:
        RuntimeError: some leaf cannot take its gradient; nothing was changed.
    """
    todo = [
        (sink, array, exclusive)
        for sink, (array, exclusive) in zip(frozen.sinks, captured, strict=True)
        if array is not None and not isinstance(sink, ResultSink)
    ]
    for sink, _, _ in todo:
        if isinstance(sink, LeafSink):
            sink.accumulator.check()
    with _interrupts_deferred():
        for sink, array, exclusive in todo:
            if isinstance(sink, LeafSink):
                sink.accumulator.accumulate(array, exclusive=exclusive)
            else:
                _retain(sink.tensor, array)


def _retain(tensor: Tensor, array: Any) -> None:
    previous = tensor._grad
    tensor._grad = Tensor(adopt(array) if previous is None else previous._array + array)


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Let a Ctrl-C wait until the commit is over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *args: arrived.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if arrived and callable(before):
        before(*arrived[0])
    elif arrived:
        warnings.warn("an interrupt arrived while gradients were committed", stacklevel=2)
