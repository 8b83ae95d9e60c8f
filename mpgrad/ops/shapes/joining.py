"""Several tensors combined: side by side, in a grid, to one shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpgrad.arrays.cpu.broadcasting import broadcast_shape
from mpgrad.ops.calling.promotion import require_tensors
from mpgrad.ops.shapes.shape import broadcast_to, cat, expand, reshape, transpose
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "broadcast_tensors",
    "concat",
    "concatenate",
    "hstack",
    "meshgrid",
    "row_stack",
    "vstack",
]

concat = concatenate = cat


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the second dimension; vectors along their only one.

    Raises:
        RuntimeError: there are none, or their shapes do not fit.
    """
    if not tensors:
        raise RuntimeError("hstack expects a non-empty list of Tensors")
    parts = [reshape(tensor, 1) if tensor.ndim == 0 else tensor for tensor in tensors]
    return cat(parts, 0 if parts and parts[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the first dimension; each vector is a row.

    Raises:
        RuntimeError: there are none, or their shapes do not fit.
    """
    if not tensors:
        raise RuntimeError("vstack expects a non-empty list of Tensors")
    return cat([reshape(t, (1, -1)) if t.ndim < 2 else t for t in tensors], 0)


row_stack = vstack


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Views of one common shape."""
    shape = broadcast_shape(*(tensor.shape for tensor in tensors))
    return tuple(broadcast_to(tensor, shape) for tensor in tensors)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """For each vector the grid of its values over all combinations.

    Args:
        tensors: vectors, or one list of them.
        indexing: ``"ij"``, or ``"xy"`` to swap the first two dimensions.

    Raises:
        RuntimeError: another ``indexing``; one has more dimensions; they have different dtypes or
            devices; or there are none.
        TypeError: one is no tensor.
    """
    if indexing not in ("ij", "xy"):
        raise RuntimeError(f"meshgrid: indexing must be one of 'xy' or 'ij', but got {indexing!r}")
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tuple(tensors[0])
    for at, tensor in enumerate(tensors):
        require_tensors("meshgrid", **{f"tensors[{at}]": tensor})
    if not tensors:
        raise RuntimeError("meshgrid expects a non-empty TensorList")
    sizes = [tensor._array.size for tensor in tensors]
    if any(tensor.ndim > 1 for tensor in tensors):
        raise RuntimeError(
            "torch.meshgrid: Expected 0D or 1D tensor in the tensor list but got shapes "
            f"{[list(tensor.shape) for tensor in tensors]}"
        )
    if len({(tensor.dtype, tensor.device) for tensor in tensors}) > 1:
        raise RuntimeError(
            "torch.meshgrid expects all tensors to have the same dtype and device, not "
            f"{[f'{tensor.dtype} on {tensor.device}' for tensor in tensors]}"
        )
    grids = [
        expand(reshape(tensor, tuple(-1 if d == at else 1 for d in range(len(sizes)))), *sizes)
        for at, tensor in enumerate(tensors)
    ]
    swap = indexing == "xy" and len(grids) > 1
    return tuple(transpose(grid, 0, 1) if swap else grid for grid in grids)
