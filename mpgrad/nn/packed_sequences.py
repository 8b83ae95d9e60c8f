"""Sequences of different lengths in one tensor: packed step by step, or padded to one length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpgrad.ops.by_index.indexing import index_select, split
from mpgrad.ops.new_tensors.creation import as_tensor, full
from mpgrad.ops.shapes.shape import cat, stack, transpose
from mpgrad.recording.tensors.tensor import Tensor


class PackedSequence(NamedTuple):
    """The steps of a batch of sequences, longest first, without what pads the shorter ones.

    Attributes:
        data: (sum of the lengths, features): the first steps of all, then the second ones ...
        batch_sizes: (longest length,): how many sequences have that step.
        sorted_indices: (batch,): the index of each sequence before sorting; None: not sorted.
        unsorted_indices: (batch,): the index of each sequence now.
    """

    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None

    def to(self, *args: Any, **options: Any) -> PackedSequence:
        """With ``data`` in another dtype or on another device."""
        return self._replace(data=self.data.to(*args, **options))

    def cpu(self) -> PackedSequence:
        """With ``data`` in the memory of the host."""
        return self.to("cpu")

    def cuda(self, device: Any = None) -> PackedSequence:
        """With ``data`` on a GPU: that one, or the thread's current one."""
        return self.to("cuda" if device is None else device)

    def double(self) -> PackedSequence:
        """With ``data`` in float64."""
        return self.to(np.float64)

    def float(self) -> PackedSequence:
        """With ``data`` in float32."""
        return self.to(np.float32)

    def half(self) -> PackedSequence:
        """With ``data`` in float16."""
        return self.to(np.float16)

    def long(self) -> PackedSequence:
        """With ``data`` in int64."""
        return self.to(np.int64)

    def int(self) -> PackedSequence:
        """With ``data`` in int32."""
        return self.to(np.int32)

    @property
    def is_cuda(self) -> bool:
        """Whether ``data`` lies on a GPU."""
        return self.data.is_cuda  # type: ignore[no-any-return]


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Leave out what pads the sequences of ``input``.

    Args:
        input: (length, batch, ...), or (batch, length, ...) with ``batch_first``.
        lengths: of each sequence.
        batch_first: see ``input``.
        enforce_sorted: the sequences come longest first; else they are sorted here.

    Raises:
        RuntimeError: they are not sorted, a length is not positive, or there are not as many
            lengths as sequences.
    """
    counts = np.asarray(as_tensor(lengths).tolist(), np.int64)
    if not input.numel():
        raise RuntimeError("Cannot pack empty tensors.")
    steps = transpose(input, 0, 1) if batch_first else input
    if counts.ndim != 1 or len(counts) != steps.shape[1]:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {counts.size} (batch_size="
            f"{steps.shape[1]})"
        )
    if np.any(counts <= 0):
        raise RuntimeError("Length of all samples has to be greater than 0")
    order = back = None
    if not enforce_sorted:
        places = np.argsort(-counts, kind="stable")
        order, back = Tensor(places), Tensor(np.argsort(places, kind="stable"))
        counts, steps = counts[places], index_select(steps, 1, order)
    elif np.any(np.diff(counts) > 0):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You "
            "can pass `enforce_sorted=False` to have the sequences sorted here."
        )
    if counts[0] > steps.shape[0]:
        raise RuntimeError(
            f"a length is {counts[0]}, and the sequences have {steps.shape[0]} steps"
        )
    sizes = [int((counts > step).sum()) for step in range(int(counts[0]))]
    data = cat([steps[step, :size] for step, size in enumerate(sizes)])
    return PackedSequence(data, Tensor(np.array(sizes)), order, back)


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The sequences padded to one length, in the order that they had, and their lengths.

    Args:
        sequence: what was packed.
        batch_first: (batch, length, ...) instead of (length, batch, ...).
        padding_value: after the end of the shorter ones.
        total_length: to pad to; by default the longest length.

    Raises:
        ValueError: ``total_length`` is shorter than a sequence.
    """
    sizes = sequence.batch_sizes.tolist()
    if total_length is not None and total_length < len(sizes):
        raise ValueError(
            "Expected total_length to be at least the length of the longest sequence in input, but "
            f"got total_length={total_length} and max sequence length being {len(sizes)}"
        )
    rows = []
    for row in split(sequence.data, sizes):
        missing = sizes[0] - row.shape[0]
        padding = _padding((missing, *row.shape[1:]), padding_value, row)
        rows.append(cat([row, padding]) if missing else row)
    shape = rows[0].shape
    rows += [_padding(tuple(shape), padding_value, rows[0])] * ((total_length or 0) - len(sizes))
    padded = stack(rows)
    lengths = Tensor((np.array(sizes)[:, None] > np.arange(sizes[0])).sum(0))
    if sequence.unsorted_indices is not None:
        padded = index_select(padded, 1, sequence.unsorted_indices)
        lengths = index_select(lengths, 0, sequence.unsorted_indices)
    return (transpose(padded, 0, 1) if batch_first else padded), lengths


def pad_sequence(
    sequences: Sequence[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Tensors of shapes (length, ...) as one, each padded to the longest length.

    Args:
        sequences: alike in all dimensions but the first.
        batch_first: (batch, length, ...) instead of (length, batch, ...).
        padding_value: what fills them.
        padding_side: "right" or "left".

    Raises:
        ValueError: another ``padding_side``.
        RuntimeError: ``sequences`` cannot be iterated over.
    """
    if not isinstance(sequences, Iterable):
        raise RuntimeError(
            "pad_sequence: Expected iterable for input sequences, but got arg of type: "
            f"{type(sequences)}"
        )
    if padding_side not in ("right", "left"):
        raise ValueError(f"padding_side should be 'right' or 'left', not {padding_side!r}")
    longest = max(sequence.shape[0] for sequence in sequences)
    rows = []
    for sequence in sequences:
        padding = _padding(
            (longest - sequence.shape[0], *sequence.shape[1:]), padding_value, sequence
        )
        rows.append(cat([sequence, padding] if padding_side == "right" else [padding, sequence]))
    return stack(rows, 0 if batch_first else 1)


def unpad_sequence(
    padded_sequences: Tensor, lengths: Tensor, batch_first: bool = False
) -> list[Tensor]:
    """The sequences of a padded tensor, each with its own length."""
    rows = padded_sequences if batch_first else transpose(padded_sequences, 0, 1)
    return [rows[k, :length] for k, length in enumerate(lengths.tolist())]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Tensors of shapes (length, ...) packed; see :func:`pack_padded_sequence`."""
    lengths = [sequence.shape[0] for sequence in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a packed one, each with its own length."""
    return unpad_sequence(*pad_packed_sequence(packed_sequences))


def _padding(shape: tuple[int, ...], value: float, like: Tensor) -> Tensor:
    return full(shape, value, dtype=like.dtype, device=like.device)
