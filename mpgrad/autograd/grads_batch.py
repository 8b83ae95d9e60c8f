"""``grad(..., is_grads_batched=True)``: one run of the graph for each seed of a batch.

PyTorch runs it once, under ``vmap``; the results are the same. Hooks are called once per seed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpgrad.autograd.roots import root_metadata, seed_tuple
from mpgrad.ops.by_index import indexing
from mpgrad.ops.new_tensors.creation import zeros_like
from mpgrad.ops.shapes import shape
from mpgrad.recording.graph.grad_modes import set_grad_enabled
from mpgrad.recording.tensors.tensor import Tensor

#: ``run(seeds, keep_graph)``: one result, or None, for each input.
Run = Callable[[Sequence[Tensor], bool], list[Tensor | None]]


def results_of_batch(
    run: Run, roots: Sequence[Any], grad_outputs: Any, keep_graph: bool, create_graph: bool
) -> list[Tensor | None]:
    """Results with the batch as their first dimension.

    Args:
        run: computes the results for one seed per root.
        roots: the roots.
        grad_outputs: one seed per root, of the root's shape behind the batch's dimension.
        keep_graph: whether the graph's saved tensors stay after the last run.
        create_graph: whether the results are recorded, and with them how they are joined.

    Raises:
        RuntimeError: a seed does not fit its root.
        ValueError: a seed is missing, the batch is empty, or the batches have different sizes.
    """
    grads = seed_tuple(grad_outputs, len(roots))
    length = _batch_length(roots, grads)
    rows = []
    with set_grad_enabled(create_graph):
        batches = [indexing.unbind(seed) for seed in grads]
        for number in range(length):
            seeds = [batch[number] for batch in batches]
            rows.append(run(seeds, keep_graph or number < length - 1))
        return [_joined(column) for column in zip(*rows, strict=True)]


def _batch_length(roots: Sequence[Any], grads: Sequence[Any]) -> int:
    lengths = set()
    for index, (root, seed) in enumerate(zip(roots, grads, strict=True)):
        expected = root_metadata(index, root).shape
        if not isinstance(seed, Tensor):
            raise ValueError(
                f"is_grads_batched=True needs a batch of seeds for output {index}, not "
                f"{type(seed).__name__}"
            )
        if seed.ndim == 0 or seed.shape[1:] != expected:
            raise RuntimeError(
                "If `is_grads_batched=True`, we interpret the first dimension of each grad_output "
                "as the batch dimension. The sizes of the remaining dimensions are expected to "
                "match the shape of corresponding output, but a mismatch was detected: "
                f"grad_output[{index}] has a shape of {seed.shape} and output[{index}] has a shape "
                f"of {expected}."
            )
        lengths.add(seed.shape[0])
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            "is_grads_batched=True: Expected all tensors to have the same size in the mapped "
            f"dimension, at least 1, got sizes {sorted(lengths)}"
        )
    return lengths.pop()


def _joined(column: Sequence[Tensor | None]) -> Tensor | None:
    """The results of one input; a Function may leave some of them undefined."""
    defined = next((result for result in column if result is not None), None)
    if defined is None:
        return None
    return shape.stack([zeros_like(defined) if grad is None else grad for grad in column], 0)
