"""``einsum``: sums of products in Einstein's notation, as a chain of batched matrix products."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Any, NamedTuple

import numpy as np

from mpgrad.ops.by_index.indexing import getitem
from mpgrad.ops.calling.promotion import as_tensor_operand
from mpgrad.ops.elementwise.arithmetic import mul
from mpgrad.ops.linear_algebra.matrix_products import matmul
from mpgrad.ops.reductions import reduction
from mpgrad.ops.shapes.shape import permute, reshape
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["einsum"]

#: The names of an ellipsis's dimensions: not letters, so that no subscript uses them.
_ELLIPSIS_LABELS = "0123456789"

#: The letters of labels that are numbers, in PyTorch's order.
_LETTERS = ascii_uppercase + ascii_lowercase


class _Labelled(NamedTuple):
    """A tensor and a label for each of its dimensions, all different."""

    tensor: Tensor
    labels: str


def einsum(equation: str | Tensor, *operands: Any) -> Tensor:
    """Multiply the operands and sum over every label that the output does not have.

    Args:
        equation: ``"bij,bjk->bik"``: a letter per dimension, ``...`` for any leading ones. Without
            ``->`` the output has the labels that occur once, in alphabetical order. A label twice
            in one operand takes its diagonal; dimensions of length 1 broadcast.
        operands: a tensor per term, or one list of them.

    Without an equation each operand is followed by the list of its labels, which are numbers from
    0 to 51 or ``...``; a list at the end has those of the output.

    Raises:
        RuntimeError: the equation does not fit the operands.
        ValueError: a label of a list is not in this range, or there is no operand.
    """
    if not operands:
        raise ValueError(
            "einsum(): there must be an equation and an operand, or an operand and its labels"
        )
    if not isinstance(equation, str):
        equation, operands = _from_lists((equation, *operands))
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    tensors = [as_tensor_operand(operand) for operand in operands]
    terms, output = _parse(equation, tensors)
    sizes = _sizes(terms, tensors)
    missing = [label for label in output if label not in sizes]
    if missing or len(set(output)) != len(output):
        raise RuntimeError(
            f"einsum(): each label of the output must occur once there and in an operand: "
            f"{equation!r}"
        )
    parts = [
        _without_broadcast(_diagonal(t, term), sizes)
        for t, term in zip(tensors, terms, strict=True)
    ]
    total = parts[0]
    for position, part in enumerate(parts[1:], start=2):
        kept = set(output).union(*(later.labels for later in parts[position:]))
        total = _product(total, part, kept, sizes, output)
    gone = [label for label in total.labels if label not in output]
    order = tuple(total.labels.index(label) for label in [*output, *gone])
    found = permute(total.tensor, order)
    return reduction.sum(found, tuple(range(len(output), found.ndim))) if gone else found


def _from_lists(given: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """The equation and the operands of ``given``: operands, each with the list of its labels."""
    pairs = len(given) // 2 * 2
    equation = ",".join(_letters(labels) for labels in given[1:pairs:2])
    if pairs < len(given):
        equation += "->" + _letters(given[-1])
    return equation, given[:pairs:2]


def _letters(labels: Any) -> str:
    if not isinstance(labels, list | tuple):
        raise TypeError(f"einsum(): labels must be a list of ints, not {type(labels).__name__}")
    if not all(n is ... or (isinstance(n, int) and 0 <= n <= 51) for n in labels):
        raise ValueError(f"einsum(): labels must be from 0 to {51} or '...': {labels}")
    return "".join("..." if n is ... else _LETTERS[n] for n in labels)


def _parse(equation: str, tensors: Sequence[Tensor]) -> tuple[list[str], str]:
    """A label for each dimension of each operand and of the output."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(tensors):
        raise RuntimeError(
            f"einsum(): {equation!r} has {len(terms)} terms, but there are {len(tensors)} operands"
        )
    if not all(re.fullmatch(r"[a-zA-Z]*(\.\.\.)?[a-zA-Z]*", term) for term in [*terms, right]):
        raise RuntimeError(f"einsum(): {equation!r} may contain letters, ',', '...' and '->' only")
    hidden = [
        tensor.ndim - len(term.replace("...", ""))
        for tensor, term in zip(tensors, terms, strict=True)
    ]
    for term, tensor, count in zip(terms, tensors, hidden, strict=True):
        if count < 0 or (count and "..." not in term) or count > len(_ELLIPSIS_LABELS):
            raise RuntimeError(
                f"einsum(): the number of labels in {term!r} does not match the {tensor.ndim} "
                "dimensions of its operand"
            )
    # Ellipses are aligned at their end.
    labels = _ELLIPSIS_LABELS[: max(hidden)]
    full = [
        term.replace("...", labels[len(labels) - count :])
        for term, count in zip(terms, hidden, strict=True)
    ]
    if arrow:
        return full, right.replace("...", labels)
    counts = Counter("".join(full))
    return full, labels + "".join(
        sorted(label for label, n in counts.items() if n == 1 and label not in labels)
    )


def _sizes(terms: Sequence[str], tensors: Sequence[Tensor]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, tensors, strict=True):
        for label, length in zip(term, tensor.shape, strict=True):
            known = sizes.get(label, 1)
            if length not in (1, known) and known != 1:
                raise RuntimeError(
                    f"einsum(): operands do not broadcast: label {label!r} has lengths {known} and "
                    f"{length}"
                )
            sizes[label] = known if length == 1 else length
    return sizes


def _diagonal(tensor: Tensor, term: str) -> _Labelled:
    """With one dimension for each label, also where ``term`` has it several times."""
    labels = "".join(dict.fromkeys(term))
    if len(labels) == len(term):
        return _Labelled(tensor, labels)
    lengths = {label: tensor.shape[term.index(label)] for label in labels}
    grids = np.ix_(*(np.arange(lengths[label]) for label in labels))
    key = tuple(grids[labels.index(label)] for label in term)
    return _Labelled(getitem(tensor, key), labels)


def _without_broadcast(part: _Labelled, sizes: dict[str, int]) -> _Labelled:
    """Without the dimensions of length 1 that are longer elsewhere."""
    pairs = zip(part.labels, part.tensor.shape, strict=True)
    kept = [(label, length) for label, length in pairs if length == sizes[label]]
    shape = tuple(length for _, length in kept)
    return _Labelled(reshape(part.tensor, shape), "".join(label for label, _ in kept))


def _summed(part: _Labelled, kept: set[str]) -> _Labelled:
    """Summed over every label that is not ``kept``."""
    gone = tuple(at for at, label in enumerate(part.labels) if label not in kept)
    if not gone:
        return part
    labels = "".join(label for label in part.labels if label in kept)
    return _Labelled(reduction.sum(part.tensor, gone), labels)


def _product(
    a: _Labelled, b: _Labelled, kept: set[str], sizes: dict[str, int], output: str
) -> _Labelled:
    """One batched matrix product: multiply, and sum over the shared dimensions that are dropped.

    Its dimensions are in the order of ``output`` as far as a product can have it.
    """
    a, b = _summed(a, kept | set(b.labels)), _summed(b, kept | set(a.labels))

    def ordered(labels: str) -> str:
        return "".join(sorted(labels, key=f"{output}{a.labels}{b.labels}".index))

    shared = [label for label in a.labels if label in b.labels]
    batch = ordered("".join(label for label in shared if label in kept))
    inner = "".join(label for label in shared if label not in kept)
    left = ordered("".join(label for label in a.labels if label not in shared))
    right = ordered("".join(label for label in b.labels if label not in shared))
    if not inner:  # nothing is summed
        labels = ordered(batch + left + right)
        return _Labelled(mul(_stretched(a, labels), _stretched(b, labels)), labels)
    if ordered(left + right)[:1] == right[:1] != "":
        a, b, left, right = b, a, right, left
    product = matmul(_matrix(a, batch, left, inner), _matrix(b, batch, inner, right))
    labels = batch + left + right
    return _Labelled(reshape(product, tuple(sizes[label] for label in labels)), labels)


def _stretched(part: _Labelled, labels: str) -> Tensor:
    """The dimensions in the order of ``labels``, of length 1 where ``part`` has none."""
    order = [part.labels.index(label) for label in labels if label in part.labels]
    lengths = iter(part.tensor.shape[at] for at in order)
    shape = tuple(next(lengths) if label in part.labels else 1 for label in labels)
    return reshape(permute(part.tensor, tuple(order)), shape)


def _matrix(part: _Labelled, *groups: str) -> Tensor:
    """The dimensions in the order of ``groups``: the first unchanged, the others joined."""
    order = tuple(part.labels.index(label) for label in "".join(groups))
    shape = iter(part.tensor.shape[at] for at in order)
    lengths = [[next(shape) for _ in group] for group in groups]
    joined = tuple(int(np.prod(group)) for group in lengths[1:])
    return reshape(permute(part.tensor, order), (*lengths[0], *joined))
