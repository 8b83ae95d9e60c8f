"""autograd.functional: Jacobians and Hessians of a function, and products with them.

``jvp`` differentiates twice: the gradient ``u -> u J`` is linear, so its own derivative in the
direction ``v`` is ``J v``, whatever ``u`` is (Townsend 2017, "A new trick for calculating Jacobian
vector products"). A product with the Hessian is the derivative of ``gradient . v`` (Pearlmutter
1994, "Fast exact multiplication by the Hessian").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.autograd.backward import grad
from mpgrad.autograd.functional_arguments import (
    NOT_ALLOWED,
    call,
    constants,
    filled,
    packed,
    scalar,
    variables,
    vector,
)
from mpgrad.ops.new_tensors import creation
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.shapes.shape import reshape, stack
from mpgrad.recording.graph.grad_modes import enable_grad
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

TensorFunction = Callable[..., Any]

_INDEPENDENT = (
    "The output of the user-provided function is independent of input {index}. " + NOT_ALLOWED + "."
)
_CONSTANT = (
    "The {what} of the user-provided function is independent of input {{index}}. "
    + NOT_ALLOWED
    + " when create_graph=True."
)
_LINEAR = (
    "While computing the hessian, found that the jacobian of the user-provided function with "
    "respect to input {index} is independent of the input. "
    + NOT_ALLOWED
    + ". You should ensure that your function is twice differentiable and that the jacobian "
    "depends on the inputs (this would be violated by a linear function for example)."
)
_ONE_OUTPUT = "the user-provided function returns a single Tensor"
_ONE_INPUT = "the input to the user-provided function is a single Tensor"


def vjp(
    func: TensorFunction,
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """The product ``v J`` of a vector with the Jacobian of ``func`` at ``inputs``.

    Args:
        func: takes Tensors, returns a Tensor or a tuple of Tensors.
        inputs: a Tensor or a tuple of Tensors.
        v: like the result of ``func``; may be None if that has one element.
        create_graph: give the results a history.
        strict: raise if an output does not depend on an input, instead of returning zeros.

    Returns:
        (the result of ``func``, the product: for each input a Tensor of its shape).

    Raises:
        TypeError: a value must be a Tensor and is not.
        RuntimeError: ``v`` does not fit, or ``strict``.
    """
    given = packed(inputs, "inputs", "vjp")
    with enable_grad():
        points = variables(given, create_graph=create_graph)
        outputs = call(func, points, "vjp", strict=strict)
        seeds = vector(v, outputs, "vjp", missing=_ONE_OUTPUT, create_graph=create_graph)
        found = _gradients(outputs.tensors, points, seeds, create_graph=create_graph)
        products = filled(found, points, **_strictness(strict, create_graph, _INDEPENDENT))
        return (
            outputs.like(constants(outputs.tensors, create_graph=create_graph)),
            given.like(constants(products, create_graph=create_graph)),
        )


def jvp(
    func: TensorFunction,
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """The product ``J v`` of the Jacobian of ``func`` at ``inputs`` with a vector.

    Args:
        func, inputs: as for :func:`vjp`. ``func`` is differentiated twice.
        create_graph, strict: as for :func:`vjp`.
        v: like ``inputs``; may be None if there is one element.

    Returns:
        (the result of ``func``, the product: for each output a Tensor of its shape).

    Raises:
        TypeError: a value must be a Tensor and is not.
        RuntimeError: ``v`` does not fit, ``strict``, or ``func`` cannot be differentiated twice.
    """
    given = packed(inputs, "inputs", "jvp")
    directions = vector(v, given, "jvp", missing=_ONE_INPUT, create_graph=create_graph)
    with enable_grad():
        points = variables(given, create_graph=create_graph)
        outputs = call(func, points, "jvp", strict=strict)
        seeds = [creation.ones_like(out, requires_grad=_is_float(out)) for out in outputs.tensors]
        found = _gradients(outputs.tensors, points, seeds, create_graph=True)
        strictness = _strictness(strict, create_graph, _INDEPENDENT)
        filled(found, points, independent=strictness["independent"], constant=None)
        pairs = [(g, d) for g, d in zip(found, directions, strict=True) if g is not None]
        for gradient, _ in pairs:
            check_differentiable(gradient)
        second = _gradients(
            [g for g, _ in pairs], seeds, [d for _, d in pairs], create_graph=create_graph
        )
        products = filled(second, outputs.tensors, **strictness)
        return (
            outputs.like(constants(outputs.tensors, create_graph=create_graph)),
            outputs.like(constants(products, create_graph=create_graph)),
        )


def jacobian(
    func: TensorFunction,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The whole Jacobian of ``func`` at ``inputs``, by one backward for each element of an output.

    Args:
        func, inputs, create_graph, strict: as for :func:`vjp`.
        vectorize: accepted; the result is the same.
        strategy: ``"forward-mode"`` is accepted with ``vectorize``; the result is the same.

    Returns:
        A Tensor of shape (output's shape, input's shape); one, a tuple with one per input, or per
        output a tuple with one per input, depending on the tuples that ``func`` takes and returns.

    Raises:
        TypeError: a value must be a Tensor and is not.
        RuntimeError: ``strict`` with ``vectorize``, or an output does not depend on an input.
        NotImplementedError: a combination with ``"forward-mode"`` that PyTorch lacks, too.
    """
    _check_strategy(strict, vectorize, strategy, create_graph)
    given = packed(inputs, "inputs", "jacobian")
    with enable_grad():
        points = variables(given, create_graph=create_graph)
        outputs = call(func, points, "jacobian", strict=strict)
        rows = []
        for number, output in enumerate(outputs.tensors):
            words = (
                f"Output {number} of the user-provided function is independent of input {{index}}. "
                f"{NOT_ALLOWED}."
            )
            strictness = _strictness(strict, create_graph, words)
            row = _jacobian_of(output, points, create_graph, strictness)
            rows.append(given.like(constants(row, create_graph=create_graph)))
    return outputs.like(rows)


def hessian(
    func: TensorFunction,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The Hessian of a function of one element: the Jacobian of its gradient.

    Args:
        func: takes Tensors, returns a Tensor with one element.
        inputs, create_graph, strict, vectorize: as for :func:`jacobian`.
        outer_jacobian_strategy: ``strategy`` of :func:`jacobian`.

    Returns:
        A Tensor of shape (input's shape, input's shape), or a tuple of tuples of them if
        ``inputs`` is a tuple.

    Raises:
        TypeError: a value must be a Tensor and is not.
        RuntimeError: ``func`` does not return one element, or as :func:`jacobian`.
    """
    given = packed(inputs, "inputs", "hessian")

    def gradient(*points: Tensor) -> tuple[Tensor, ...]:
        output = scalar(call(func, points, "hessian", strict=strict), "hessian")
        found = _gradients([output], points, [_one(output)], create_graph=True)
        return tuple(_strict_gradient(found, points, strict=strict))

    rows = jacobian(
        gradient, given.tensors, create_graph, strict, vectorize, outer_jacobian_strategy
    )
    return given.like([given.like(row) for row in rows])


def vhp(
    func: TensorFunction,
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """The product ``v H`` of a vector with the Hessian of a function of one element.

    Args:
        func: takes Tensors, returns a Tensor with one element.
        inputs, create_graph, strict: as for :func:`vjp`.
        v: like ``inputs``; may be None if there is one element.

    Returns:
        (the result of ``func``, the product: for each input a Tensor of its shape).

    Raises:
        TypeError: a value must be a Tensor and is not.
        RuntimeError: ``func`` does not return one element, ``v`` does not fit, or ``strict``.
    """
    return _hessian_product("vhp", func, inputs, v, create_graph, strict)


def hvp(
    func: TensorFunction,
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """The product ``H v`` of the Hessian of a function of one element with a vector.

    It is computed as ``v H``: a Hessian is symmetric wherever it is continuous (Schwarz).

    Args:
        func: takes Tensors, returns a Tensor with one element.
        inputs, create_graph, strict: as for :func:`vjp`.
        v: like ``inputs``; may be None if there is one element.

    Returns:
        (the result of ``func``, the product: for each input a Tensor of its shape).

    Raises:
        TypeError: a value must be a Tensor and is not.
        RuntimeError: ``func`` does not return one element, ``v`` does not fit, or ``strict``.
    """
    return _hessian_product("hvp", func, inputs, v, create_graph, strict)


def _hessian_product(
    name: str, func: TensorFunction, inputs: Any, v: Any, create_graph: bool, strict: bool
) -> tuple[Any, Any]:
    given = packed(inputs, "inputs", name)
    directions = vector(v, given, name, missing=_ONE_INPUT, create_graph=create_graph)
    with enable_grad():
        points = variables(given, create_graph=create_graph)
        outputs = call(func, points, name, strict=strict)
        output = scalar(outputs, name)
        found = _gradients([output], points, [_one(output)], create_graph=True)
        first = _strict_gradient(found, points, strict=strict)
        second = _gradients(first, points, directions, create_graph=create_graph)
        strictness = _strictness(strict, create_graph, _LINEAR, what="hessian")
        products = filled(second, points, **strictness)
        return (
            outputs.like(constants(outputs.tensors, create_graph=create_graph)),
            given.like(constants(products, create_graph=create_graph)),
        )


# ---------------------------------------------------------------------- the parts


def _gradients(
    outputs: Sequence[Tensor],
    points: Sequence[Tensor],
    seeds: Sequence[Tensor],
    *,
    create_graph: bool,
) -> list[Tensor | None]:
    """``grad()`` of the outputs that require grad; None for unused inputs."""
    pairs = [(out, s) for out, s in zip(outputs, seeds, strict=True) if out.requires_grad]
    if not pairs:
        return [None] * len(points)
    found = grad(
        [out for out, _ in pairs],
        list(points),
        [seed for _, seed in pairs],
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
    )
    return list(found)


def _jacobian_of(
    output: Tensor, points: Sequence[Tensor], create_graph: bool, strictness: dict[str, Any]
) -> list[Tensor]:
    """For each point the Jacobian of one output."""
    columns: list[list[Tensor]] = [[] for _ in points]
    for place in np.ndindex(output.shape):
        seed = np.zeros(output.shape, output.dtype)
        seed[place] = 1
        found = _gradients([output], points, [beside(output, seed)], create_graph=create_graph)
        for column, gradient in zip(columns, filled(found, points, **strictness), strict=True):
            column.append(gradient)
    return [
        reshape(stack(column), (*output.shape, *point.shape))
        if column
        else creation.zeros((*output.shape, *point.shape), dtype=point.dtype, device=point.device)
        for column, point in zip(columns, points, strict=True)
    ]


def _strict_gradient(
    found: Sequence[Tensor | None], points: Sequence[Tensor], *, strict: bool
) -> list[Tensor]:
    """The first derivative, for a second one."""
    return filled(
        found,
        points,
        independent=_INDEPENDENT if strict else None,
        constant=_LINEAR if strict else None,
    )


def _strictness(
    strict: bool, create_graph: bool, independent: str, what: str = "jacobian"
) -> dict[str, str | None]:
    """The errors that :func:`filled` must raise."""
    return {
        "independent": independent if strict else None,
        "constant": _CONSTANT.format(what=what) if strict and create_graph else None,
    }


def check_differentiable(gradient: Tensor) -> None:
    """Check that a gradient depends on its seed: otherwise a computation was not recorded.

    Raises:
        RuntimeError: it does not depend on it; its derivative would be a wrong zero.
    """
    if not gradient.requires_grad and np.any(on_host(gradient._array)):
        raise RuntimeError(
            "jvp differentiates the backward pass, but a custom Function in it computed its "
            "gradient in a way that is not recorded (with NumPy, or from detached tensors)"
        )


def _check_strategy(strict: bool, vectorize: bool, strategy: str, create_graph: bool) -> None:
    if strategy not in ("forward-mode", "reverse-mode"):
        raise AssertionError(
            f'Expected strategy to be either "forward-mode" or "reverse-mode", not {strategy!r}'
        )
    if strategy == "forward-mode" and create_graph:
        raise NotImplementedError(
            '`create_graph=True` and `strategy="forward-mode"` are not supported together; use '
            '`strategy="reverse-mode"`'
        )
    if strategy == "forward-mode" and not vectorize:
        raise NotImplementedError('strategy="forward-mode" needs vectorize=True')
    if strict and vectorize:
        raise RuntimeError(
            "`strict=True` and `vectorized=True` are not supported together. Please either set "
            "`strict=False` or `vectorize=False`."
        )


def _one(output: Tensor) -> Tensor:
    return creation.ones_like(output)


def _is_float(tensor: Tensor) -> bool:
    return tensor._array.dtype.kind in "fc"
