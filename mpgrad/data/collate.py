"""default_collate: a list of samples becomes one batch; default_convert: one sample of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpgrad.ops.new_tensors.creation import as_tensor, tensor
from mpgrad.ops.shapes.shape import stack
from mpgrad.recording.tensors import storage
from mpgrad.recording.tensors.of_pytorch import is_of_pytorch
from mpgrad.recording.tensors.tensor import Tensor


def default_collate(samples: Sequence[Any]) -> Any:
    """Stack tensors, arrays and numbers along a new first dimension, keeping their structure.

    Args:
        samples: of one structure: Tensors, arrays, numbers, strings (kept as they are), or tuples,
            lists and dicts of these.

    Raises:
        TypeError: a sample holds something else.
        RuntimeError: samples of different lengths or shapes.
    """
    first = samples[0]
    if isinstance(first, Tensor):
        return stack(samples, 0)
    if isinstance(first, np.ndarray):
        return _stack_arrays(samples)
    if isinstance(first, bool | int | float | np.generic):
        # As PyTorch: a Python float keeps its precision in a batch.
        return tensor(list(samples), dtype=np.float64 if isinstance(first, float) else None)
    if isinstance(first, str | bytes):
        return samples
    if isinstance(first, Mapping):
        return {key: default_collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, Sequence):
        return _collate_rows(samples)
    if is_of_pytorch(first):
        raise TypeError(
            "default_collate: the dataset gives tensors of PyTorch, and batches are mpgrad's: let "
            "the dataset return tensor.numpy(), or give the DataLoader "
            "collate_fn=torch.utils.data.default_collate for batches of PyTorch"
        )
    raise TypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found "
        f"{type(first).__name__}. Give the DataLoader a collate_fn that knows it."
    )


def _stack_arrays(samples: Sequence[Any]) -> Tensor:
    shapes = {sample.shape for sample in samples}
    if len(shapes) != 1:
        raise RuntimeError(f"stack expects each array to be equal size, but got {sorted(shapes)}")
    batch = storage.empty((len(samples), *samples[0].shape), samples[0].dtype)
    return Tensor(np.stack(samples, out=batch))


def _collate_rows(samples: Sequence[Any]) -> Any:
    first = samples[0]
    if any(len(sample) != len(first) for sample in samples):
        raise RuntimeError("each element in list of batch should be of equal size")
    columns = [default_collate(column) for column in zip(*samples, strict=True)]
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*columns)
    return columns


def default_convert(data: Any) -> Any:
    """Convert arrays within ``data`` to Tensors; other values are unchanged."""
    if isinstance(data, Tensor | str | bytes):
        return data
    if isinstance(data, np.ndarray | np.generic):
        return data if data.dtype.kind in "SUO" else as_tensor(np.asarray(data))
    if isinstance(data, Mapping):
        return {key: default_convert(value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*[default_convert(value) for value in data])
    if isinstance(data, Sequence):
        return [default_convert(value) for value in data]
    return data
