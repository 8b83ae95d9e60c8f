"""The arguments of backward() and grad() (roots, seeds and inputs), checked and as Edges.

The checks and the key words of the messages are those of ``torch.autograd``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mpgrad.arrays.cuda.device_arrays import ones, zeros
from mpgrad.autograd.frozen_graphs.frozen_graph import LeafSink, ResultSink, Sink
from mpgrad.base.size import Size
from mpgrad.ops.calling.promotion import cast
from mpgrad.ops.new_tensors.device_moves import to_device
from mpgrad.ops.shapes.shape import contiguous
from mpgrad.recording.graph.node import Edge, InputMetadata
from mpgrad.recording.tensors.accumulate_grad import AccumulateGrad
from mpgrad.recording.tensors.gradient_edge import GradientEdge
from mpgrad.recording.tensors.of_pytorch import is_of_pytorch, kind_of, mend
from mpgrad.recording.tensors.tensor import Tensor, gradient_metadata, recorded_edge

#: The edges whose gradients are captured, and their sinks; see ``freeze``.
Wanted = list[tuple[Edge, Sink | None]]

_PLACES = (Tensor, GradientEdge)


def as_tuple(tensors: Any) -> tuple[Any, ...]:
    """One Tensor or GradientEdge, or a sequence of them, as a tuple.

    Raises:
        TypeError: it is neither.
    """
    return (tensors,) if isinstance(tensors, _PLACES) else tuple(tensors)


def input_tuple(inputs: Any, function: str) -> tuple[Any, ...]:
    """The ``inputs`` of ``function``: a Tensor, a sequence of them, or a dict of them.

    Raises:
        TypeError: a mapping other than a dict.
        RuntimeError: there is no input.
    """
    if type(inputs) is dict:
        inputs = inputs.values()
    elif isinstance(inputs, Mapping):
        raise TypeError(
            f"`inputs` argument to `{function}()` must be a dict, not {type(inputs).__name__}. "
            "Other Mapping types are not supported."
        )
    found = as_tuple(inputs)
    if not found:
        raise RuntimeError(f"`inputs` argument to `{function}()` cannot be empty.")
    return found


# ---------------------------------------------------------------------- roots and their seeds


def seed_tuple(grads: Any, count: int) -> tuple[Any, ...]:
    """A seed or None for each of ``count`` roots.

    Raises:
        TypeError: ``grads`` is not a Tensor, None or a sequence.
        RuntimeError: there are too few or too many.
    """
    if grads is None:
        return (None,) * count
    if not isinstance(grads, Iterable) or is_of_pytorch(grads):
        raise TypeError(
            f"gradients can be either Tensors or None, but got {kind_of(grads)}{mend(grads)}"
        )
    seeds = as_tuple(grads)
    if len(seeds) != count:
        raise RuntimeError(f"got {count} tensors and {len(seeds)} gradients")
    return seeds


def check_roots(
    roots: Sequence[Any], grads: Sequence[Any]
) -> tuple[list[Edge], list[Tensor | None]]:
    """The edges of ``roots``, and their seeds as Tensors.

    Raises:
        RuntimeError: a root does not require grad, or a seed does not fit.
        TypeError: a seed is not a Tensor.
    """
    seeds = [
        _seed(index, root, seed)
        for index, (root, seed) in enumerate(zip(roots, grads, strict=True))
    ]
    return [_root_edge(index, root) for index, root in enumerate(roots)], seeds


def _root_edge(index: int, root: Any) -> Edge:
    if isinstance(root, GradientEdge):
        return root.node, root.output_nr
    if not root.requires_grad:
        raise RuntimeError(
            f"element {index} of tensors does not require grad and does not have a grad_fn"
        )
    return recorded_edge(root)[0]  # the caller holds a leaf


def root_metadata(index: int, root: Any) -> InputMetadata:
    """The metadata that a seed of root ``index`` must have.

    Raises:
        RuntimeError: ``root`` is neither a Tensor nor a GradientEdge.
    """
    if isinstance(root, Tensor):
        return gradient_metadata(root)
    if isinstance(root, GradientEdge):
        return root.node.input_metadata[root.output_nr]
    raise RuntimeError(
        f"element {index} of tensors is neither a Tensor nor a GradientEdge, but "
        f"{type(root).__name__}"
    )


def _seed(index: int, root: Any, seed: Any) -> Tensor | None:
    """The seed of root ``index``: of its dtype, C-contiguous, with the history of ``seed``."""
    expected = root_metadata(index, root)
    if seed is None:
        # A Tensor that does not require grad needs no seed; _root_edge refuses it.
        wanted = isinstance(root, GradientEdge) or root.requires_grad
        return _implicit_seed(expected) if wanted else None
    if not isinstance(seed, Tensor):
        raise TypeError(f"gradients can be either Tensors or None, but got {type(seed).__name__}")
    if seed.shape != expected.shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output[{index}] has a shape of {seed.shape} and "
            f"output[{index}] has a shape of {Size(expected.shape)}."
        )
    if seed.device != expected.device:
        if seed.ndim:
            raise RuntimeError(
                f"invalid gradient at index {index} - expected device {expected.device} but got "
                f"{seed.device}"
            )
        seed = to_device(seed, expected.device)
    if (seed.dtype.kind == "c") != (expected.dtype.kind == "c"):
        raise RuntimeError(
            "For complex Tensors, both grad_output and output are required to have the same dtype. "
            f"Mismatch in dtype: grad_output[{index}] has a dtype of {seed.dtype} and "
            f"output[{index}] has a dtype of {expected.dtype}."
        )
    return contiguous(cast(seed, expected.dtype))


def _implicit_seed(expected: InputMetadata) -> Tensor:
    if expected.shape and any(length != 1 for length in expected.shape):
        raise RuntimeError(
            "grad can be implicitly created only for scalar outputs, but the output has shape "
            f"{expected.shape}: pass a gradient of that shape"
        )
    if expected.dtype.kind != "f":
        raise RuntimeError(
            f"grad can be implicitly created only for real scalar outputs but got {expected.dtype}"
        )
    return Tensor(ones(expected.shape, expected.dtype, expected.device))


# ---------------------------------------------------------------------- inputs


def wanted_results(inputs: Sequence[Any]) -> Wanted:
    """The inputs of ``grad()``: the gradient of each becomes a result.

    Raises:
        RuntimeError: an input does not require grad.
    """
    return [(_input_edge(value), ResultSink(number)) for number, value in enumerate(inputs)]


def wanted_grads(inputs: Sequence[Any]) -> Wanted:
    """The ``inputs`` of ``backward()``, once for each edge: each gets a ``.grad``.

    A Tensor that is no leaf keeps its gradient as after ``retain_grad()``. A GradientEdge within
    the graph has no ``.grad``, and only limits how far the backward goes.

    Raises:
        RuntimeError: an input does not require grad.
    """
    wanted: dict[Edge, Sink | None] = {}
    for value in inputs:
        edge = _input_edge(value)
        if isinstance(edge[0], AccumulateGrad):
            wanted[edge] = LeafSink(edge[0])
            continue
        wanted[edge] = None
        if isinstance(value, Tensor):
            value.retain_grad()
    return list(wanted.items())


def _input_edge(value: Any) -> Edge:
    if isinstance(value, GradientEdge):
        return value.node, value.output_nr
    if not isinstance(value, Tensor):
        raise RuntimeError(
            f"all inputs have to be Tensors or GradientEdges, but got {type(value).__name__}"
        )
    if not value.requires_grad:
        raise RuntimeError("One of the differentiated Tensors does not require grad")
    return recorded_edge(value)[0]  # the caller holds a leaf


def zeros_for(value: Any, *, requires_grad: bool) -> Tensor:
    """The gradient of an input that does not influence the outputs.

    Raises:
        RuntimeError: a GradientEdge, for which PyTorch makes no zeros either.
    """
    if not isinstance(value, Tensor):
        raise RuntimeError(
            "materialize_grads cannot be used when the given input is a GradientEdge"
        )
    zero = zeros(value.shape, value.dtype, value.device)
    return Tensor(zero, requires_grad=requires_grad)
