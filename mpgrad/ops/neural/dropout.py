"""Dropout: random elements become zero in training."""

from __future__ import annotations

from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.random import bernoulli_mask
from mpgrad.recording.dispatch.in_place import call_in_place
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

_dropout = operator(
    "dropout",
    lambda xp, input, mask, *, scale: xp.multiply(xp.multiply(input, scale), mask),
    input=lambda xp, grad, mask, scale: xp.multiply(xp.multiply(grad, scale), mask),
    wirtinger=True,
)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero each element with probability ``p``, scale the others by ``1 / (1 - p)``.

    The mask comes from the generator that ``manual_seed`` resets (Srivastava et al., "Dropout",
    2014). ``inplace`` writes into ``input``.

    Raises:
        ValueError: ``p`` is no probability.
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0.0:
        return input
    mask = beside(input, bernoulli_mask(input.shape, 1 - p))
    run = call_in_place if inplace else call
    return run(_dropout, input, mask, scale=1 / (1 - p) if p < 1 else 0.0)  # type: ignore[no-any-return]
