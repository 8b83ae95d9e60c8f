"""GradBucket: some gradients of a model that travel together; ``buckets`` says which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mpgrad.ops.new_tensors.creation import from_numpy
from mpgrad.recording.tensors.tensor import Tensor

#: Bytes of the first bucket, which waits for no other: the sooner it leaves, the better.
FIRST_BUCKET_BYTES = 1024 * 1024


class GradBucket:
    """What a communication hook gets.

    Args:
        index: of the bucket.
        flat: its gradients, one after another.
        parameters: to which they belong, in this order.
        is_last: no bucket of this backward comes after it.
    """

    def __init__(self, index: int, flat: Any, parameters: Sequence[Tensor], is_last: bool) -> None:
        self._index, self._is_last = index, is_last
        self._buffer, self._parameters = from_numpy(flat), list(parameters)

    def index(self) -> int:
        """0 for the bucket that leaves first."""
        return self._index

    def is_last(self) -> bool:
        """Whether no other follows."""
        return self._is_last

    def buffer(self) -> Tensor:
        """The gradients, flat; shape (elements of all parameters,)."""
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        """Put another tensor of as many elements in its place."""
        if buffer.numel() != self._buffer.numel():
            raise ValueError(
                f"the buffer of this bucket has {self._buffer.numel():,} elements, not "
                f"{buffer.numel():,}"
            )
        self._buffer = buffer

    def parameters(self) -> list[Tensor]:
        """Those to which the gradients belong."""
        return list(self._parameters)

    def gradients(self) -> list[Tensor]:
        """Views of the buffer, shaped as the parameters."""
        found, at = [], 0
        for parameter in self._parameters:
            part = self._buffer[at : at + parameter.numel()]
            found.append(part.reshape(parameter.shape))
            at += parameter.numel()
        return found


def buckets(
    parameters: Sequence[Tensor], bucket_bytes: int, order: Iterable[int] | None = None
) -> list[list[int]]:
    """Which parameters travel together. A bucket has one dtype.

    Args:
        parameters: all that are trained.
        bucket_bytes: how much a bucket holds.
        order: in which their gradients come; by default the last parameter's first.
    """
    found: list[list[int]] = []
    open_of: dict[np.dtype[Any], tuple[list[int], int]] = {}
    for index in reversed(range(len(parameters))) if order is None else order:
        array = parameters[index]._array
        held, size = open_of.get(array.dtype, ([], 0))
        if not held:
            found.append(held)
        held.append(index)
        size += array.nbytes
        limit = min(FIRST_BUCKET_BYTES, bucket_bytes) if held is found[0] else bucket_bytes
        open_of[array.dtype] = ([], 0) if size >= limit else (held, size)
    return found
