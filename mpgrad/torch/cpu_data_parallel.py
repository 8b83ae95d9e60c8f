"""DataParallel with torch's signature: batches in parts, forward and backward in workers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from mpgrad.parallel.maps import map_with_first_buffers, require_equal_parts
from mpgrad.torch.tensors import LIBRARY


class DataParallel(torch.nn.Module):
    """A Module, under the name ``module``, that gets each batch in parts, forward and backward in
    workers.

    The number of parts is fixed, so that the bits depend on no number of workers. Statistics over a
    batch (BatchNorm) are those of each part, as they are of each GPU's part in PyTorch, and the
    buffers keep what part 0 has left in them.

    Args:
        module: the Module; its parameters are on the CPU.
        device_ids: without effect, as is ``output_device``.
        dim: the dimension along which batches are cut, and results joined.
        parts: the number of parts; batches with fewer rows have as many.

    Raises:
        ValueError: ``parts`` is not positive.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        *,
        parts: int = 8,
    ) -> None:
        super().__init__()
        if parts < 1:
            raise ValueError(f"parts must be at least 1, not {parts}")
        self.module, self.dim, self.parts = module, dim, parts
        self.device_ids, self.output_device = device_ids, output_device

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """What ``module`` gives for the parts of every tensor, joined.

        Tensors in tuples, lists and dictionaries are cut, too; anything else goes to every part.

        Raises:
            ValueError: tensors have different numbers of rows, and would not give as many parts.
        """
        pieces = _cut((inputs, kwargs), self.parts, self.dim)
        if pieces is None:
            return self.module(*inputs, **kwargs)
        require_equal_parts((inputs, kwargs), self.parts, self.dim, LIBRARY)
        calls = [(self.module, *piece) for piece in pieces]
        return _joined(map_with_first_buffers(_call_module, calls, LIBRARY), self.dim)


def _call_module(module: torch.nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return module(*inputs, **kwargs)


def _cut(value: Any, parts: int, dim: int) -> list[Any] | None:
    """For each part the structure of ``value``; None if there is no tensor in it."""
    if isinstance(value, torch.Tensor):
        return list(value.chunk(parts, dim))
    if isinstance(value, tuple | list | dict):
        children = [*value.values()] if isinstance(value, dict) else [*value]
        cut = [_cut(child, parts, dim) for child in children]
        counts = [len(one) for one in cut if one is not None]
        if not counts:
            return None
        rows = zip(
            *[
                [child] * min(counts) if one is None else one
                for child, one in zip(children, cut, strict=True)
            ],
            strict=False,
        )
        if isinstance(value, dict):
            return [type(value)(zip(value, row, strict=True)) for row in rows]
        return [_like(value, row) for row in rows]
    return None


def _joined(results: Sequence[Any], dim: int) -> Any:
    first = results[0]
    if isinstance(first, torch.Tensor):
        if first.ndim:
            return torch.cat([*results], dim)
        warnings.warn(
            "Was asked to gather along dimension 0, but all input tensors were scalars; will "
            "instead unsqueeze and return a vector.",
            UserWarning,
            stacklevel=4,
        )
        return torch.stack([*results])
    if first is None:
        return None
    if isinstance(first, dict):
        if any(set(one) != set(first) for one in results):
            raise ValueError("All dicts must have the same number of keys")
        return type(first)((key, _joined([one[key] for one in results], dim)) for key in first)
    if isinstance(first, tuple | list):
        return _like(first, [_joined(parts, dim) for parts in zip(*results, strict=True)])
    raise TypeError(
        f"DataParallel joins tensors in tuples, lists and dictionaries; the Module has returned "
        f"a {type(first).__name__}"
    )


def _like(value: Any, parts: Sequence[Any]) -> Any:
    """``parts`` as a sequence like ``value``, which may be a named tuple."""
    make: Any = type(value)
    return make(*parts) if hasattr(value, "_fields") else make(parts)
