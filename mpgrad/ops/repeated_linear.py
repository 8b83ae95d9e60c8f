"""A linear map that is used several times, whose weight gets one gradient from one product.

The gradient of a weight is a sum over its uses, ``sum(grad_k.T @ input_k)``: one product of all
rows, ``cat(grads).T @ cat(inputs)``. So each use passes on the two factors of its term and not
their product (*sufficient factors*: Xie et al., "Distributed machine learning via sufficient factor
broadcasting", 2015). One Node at the weight receives the factors of all uses, as gradients of its
outputs, which have no values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mpgrad.dispatch.operator_call import call
from mpgrad.graph.grad_modes import is_grad_enabled
from mpgrad.graph.registry import operator
from mpgrad.ops.linalg import linear
from mpgrad.tensors.tensor import Tensor


def _places(xp: Any, weight: Any, bias: Any, *, rows: tuple[int, ...]) -> tuple[Any, ...]:
    """For each use a place for the gradient of its result, and then those for its inputs."""
    zero = xp.zeros_beside(weight, (1, 1))
    return tuple(xp.broadcast_to(zero, (n, size)) for size in weight.shape for n in rows)


def _of_all_uses(xp: Any, grads: Any, needs: Any) -> tuple[Any, Any]:
    uses = len(grads) // 2
    of_results = xp.concatenate(grads[:uses], 0)
    return (
        xp.matmul(xp.transpose(of_results, (1, 0)), xp.concatenate(grads[uses:], 0))
        if needs[0]
        else None,
        xp.sum(of_results, 0) if needs[1] else None,
    )


_factors = operator("weight_factors", _places, joint=_of_all_uses, outputs=None)


def _use(xp: Any, input: Any, weight: Any, bias: Any, for_result: Any, for_input: Any) -> Any:
    out = xp.matmul(input, xp.transpose(weight, (1, 0)))
    if bias is not None:
        out += bias
    return out


_one_use = operator(
    "linear_use",
    _use,
    input=lambda xp, grad, weight: xp.matmul(grad, weight),
    for_result=lambda xp, grad: grad,
    for_input=lambda xp, input: input,
)


def repeated_linear(
    weight: Tensor, bias: Tensor | None, rows: Sequence[int]
) -> Callable[[Tensor], Tensor]:
    """A function that returns ``input @ weight.T + bias``, for one call after another.

    Args:
        weight: (out features, in features).
        bias: (out features,) or None.
        rows: the number of rows of the input of each call.
    """
    needed = weight.requires_grad or (bias is not None and bias.requires_grad)
    if not (needed and is_grad_enabled()):
        return partial(linear, weight=weight, bias=bias)
    places = call(_factors, weight, bias, rows=tuple(rows))
    pairs = zip(places[: len(rows)], places[len(rows) :], strict=True)
    return lambda input: call(_one_use, input, weight, bias, *next(pairs))
