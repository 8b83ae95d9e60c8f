"""grad, vjp, jvp, Jacobians and Hessians: functions of functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

from mpgrad.autograd.backward import grad as gradients
from mpgrad.autograd.functional import check_differentiable
from mpgrad.func import trees
from mpgrad.func.own_call import Argnums, OwnCall
from mpgrad.ops.new_tensors.creation import eye, ones_like, zeros, zeros_like
from mpgrad.ops.shapes.shape import reshape
from mpgrad.recording.graph.grad_modes import enable_grad, is_grad_enabled
from mpgrad.recording.tensors.tensor import Tensor


def grad(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The function that returns the gradient of ``func``, which returns a single number.

    Args:
        func: a function of Tensors, or of lists, tuples and dictionaries of them; NumPy's arrays
            become Tensors.
        argnums: the numbers of the arguments; the result has the same form as these.
        has_aux: ``func`` returns ``(number, other)``, and so does the result.

    Returns:
        A function of the same arguments, whose result can be differentiated again.
    """
    both = grad_and_value(func, argnums, has_aux)

    @wraps(func)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        found, value = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def value_and_grad(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """As :func:`grad_and_value`, in the order of JAX and HIPS autograd: value, gradient.

    Args:
        func, argnums, has_aux: as for :func:`grad`.

    Returns:
        A function of the same arguments, which returns ``(value, gradient)``; with ``has_aux``
        ``((value, other), gradient)``.
    """
    both = grad_and_value(func, argnums, has_aux)

    @wraps(func)
    def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
        found, value = both(*args, **kwargs)
        return value, found

    return value_and_gradient


def grad_and_value(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """As :func:`grad`, with the value beside the gradient.

    Args:
        func, argnums, has_aux: as for :func:`grad`.

    Returns:
        A function of the same arguments, which returns ``(gradient, value)``; with ``has_aux``
        ``(gradient, (value, other))``. It raises RuntimeError if ``func`` does not return a number.
    """

    @wraps(func)
    def gradient_and_value(*args: Any, **kwargs: Any) -> Any:
        call = OwnCall(func, args, kwargs, argnums, has_aux=has_aux)
        _check_number(call.result)
        with enable_grad():
            found = call.gradient(
                [call.result], None, create_graph=call.reaches_outside(call.result)
            )
        value = call.released(call.result)
        gradient = call.released(call.like_arguments(found))
        return gradient, (value, call.other) if has_aux else value

    return gradient_and_value


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """``func(*primals)``, and a function from a gradient of it to the gradients of ``primals``.

    Args:
        func: a function of trees of Tensors, which returns one.
        primals: its arguments.
        has_aux: ``func`` returns ``(result, other)``.

    Returns:
        (the result, a function), with ``has_aux`` (the result, a function, other). The function
        takes a tree like the result, and returns a tuple with one like each primal; it may be
        called several times. It raises RuntimeError if the tree has another form.
    """
    call = OwnCall(func, primals, {}, tuple(range(len(primals))), has_aux=has_aux)
    outputs = call.outputs("vjp")
    reaches_outside = call.reaches_outside(outputs)

    def pull(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        """``retain_graph`` is accepted for PyTorch's programs: the graph is always kept."""
        seeds = _in_order("vjp", "cotangents", cotangents, "the function's result", call.result)
        records = create_graph
        if records is None:
            records = is_grad_enabled() and (
                reaches_outside or any(seed.requires_grad for seed in seeds)
            )
        return call.like_arguments(call.gradient(outputs, seeds, create_graph=records))

    value = call.released(call.result)
    return (value, pull, call.other) if has_aux else (value, pull)


def jvp(
    func: Callable[..., Any],
    primals: Any,
    tangents: Any,
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> Any:
    """``func(*primals)``, and how it changes along ``tangents``.

    ``func`` is differentiated twice backward.

    Args:
        func: a function of trees of Tensors, which returns one.
        primals: a tuple of its arguments.
        tangents: a tuple like ``primals``.
        strict: raise if a result does not depend on ``primals``, instead of returning zeros.
        has_aux: ``func`` returns ``(result, other)``.

    Returns:
        (the result, its change: of the same form), with ``has_aux`` (the result, its change,
        other).

    Raises:
        RuntimeError: ``tangents`` do not have the form and shapes of ``primals``; or ``strict``.
    """
    for name, value in (("primals", primals), ("tangents", tangents)):
        if not isinstance(value, tuple):
            raise RuntimeError(f"jvp: Expected {name} to be a tuple, not {type(value).__name__}")
    if len(primals) != len(tangents):
        raise RuntimeError(
            "jvp: Expected primals and tangents to have the same python structure, but there are "
            f"{len(primals)} and {len(tangents)}"
        )
    call = OwnCall(func, primals, {}, tuple(range(len(primals))), has_aux=has_aux)
    value = call.released(call.result)
    change = _Pushforward(call, strict=strict)(*tangents)
    return (value, change, call.other) if has_aux else (value, change)


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """``func(*primals)``, and the function that says how it changes: ``jvp`` at this point.

    Args:
        func, primals: as for :func:`vjp`.

    Returns:
        (the result, a function of one tangent for each primal), which does not call ``func``.
    """
    call = OwnCall(func, primals, {}, tuple(range(len(primals))))
    return call.released(call.result), _Pushforward(call, strict=False)


class _Pushforward:
    """The product of the Jacobian with tangents: the derivative of a backward by its seeds."""

    def __init__(self, call: OwnCall, *, strict: bool) -> None:
        self._call = call
        self._outputs = call.outputs("jvp")
        for index, output in enumerate(self._outputs):
            if strict and not output.requires_grad:
                raise RuntimeError(f"jvp: strict=True, and output {index} depends on no primal")
        self._reaches_outside = call.reaches_outside(self._outputs)
        with enable_grad():
            self._seeds = [
                call.leaf(ones_like(output)) if output.requires_grad else ones_like(output)
                for output in self._outputs
            ]
            self._pulled = call.gradient(self._outputs, self._seeds, create_graph=True)
        for gradient in self._pulled:
            if gradient is not None:
                check_differentiable(gradient)

    def __call__(self, *tangents: Any) -> Any:
        call = self._call
        directions = _in_order("jvp", "tangents", tangents, "primals", call.given)
        records = is_grad_enabled() and (
            self._reaches_outside or any(each.requires_grad for each in directions)
        )
        pairs = [
            (pulled, direction)
            for pulled, direction in zip(self._pulled, directions, strict=True)
            if pulled is not None and pulled.requires_grad
        ]
        places = [at for at, seed in enumerate(self._seeds) if seed.requires_grad]
        changes = [zeros_like(output) for output in self._outputs]
        if pairs and places:
            found = gradients(
                [pulled for pulled, _ in pairs],
                [self._seeds[at] for at in places],
                [direction for _, direction in pairs],
                retain_graph=True,
                create_graph=records,
                allow_unused=True,
            )
            for at, change in zip(places, found, strict=True):
                if change is not None:
                    changes[at] = change
        return trees.filled(call.result, changes)


def jacrev(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """The function that returns the Jacobian of ``func``.

    Args:
        func: a function of trees of Tensors, which returns one.
        argnums: the numbers of the arguments.
        has_aux: ``func`` returns ``(result, other)``.
        chunk_size: without effect: there is one backward for each element of the result.

    Returns:
        A function of the same arguments. It returns a tree like the result of ``func``, in which
        a tree like the argument stands for each Tensor; its Tensors have the shape of the result
        followed by that of the argument. With ``has_aux`` it returns (this tree, other).
    """

    @wraps(func)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        call = OwnCall(func, args, kwargs, argnums, has_aux=has_aux)
        for tensor in [*call.points, *call.outputs("jacrev")]:
            if tensor.is_complex():
                raise RuntimeError(
                    "jacrev: Expected all inputs and outputs to be real but one is a complex "
                    "tensor: use view_as_real()"
                )
        found = trees.mapped(lambda output: _jacobian_of(call, output), call.result)
        return (found, call.other) if has_aux else found

    return jacobian


def _jacobian_of(call: OwnCall, output: Tensor) -> Any:
    """The Jacobian of one Tensor, in the form of the arguments."""
    count = math.prod(output.shape)
    rows: list[Tensor | None] = [None] * len(call.points)
    with enable_grad():
        if count:
            unit = eye(count, dtype=output.dtype, device=output.device)
            seeds = [reshape(unit, (count, *output.shape))]
            records = call.reaches_outside(output)
            rows = call.gradient([output], seeds, create_graph=records, batched=True)
        found = [
            zeros((*output.shape, *point.shape), dtype=point.dtype, device=point.device)
            if row is None
            else reshape(row, (*output.shape, *point.shape))
            for point, row in zip(call.points, rows, strict=True)
        ]
    return call.released(call.like_arguments(found))


def jacfwd(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
) -> Callable[..., Any]:
    """As :func:`jacrev`, by which it is computed: there are no derivatives forward.

    Args:
        func, argnums, has_aux: as for :func:`jacrev`.
        randomness: without effect: ``func`` is called once.
    """
    return jacrev(func, argnums, has_aux=has_aux)


def hessian(func: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """The function that returns the Hessian of ``func``.

    Args:
        func, argnums: as for :func:`jacrev`.

    Returns:
        A function of the same arguments: the Jacobian of the Jacobian. For a ``func`` of one
        Tensor that returns a number its result has the shape of the argument twice.
    """
    return jacfwd(jacrev(func, argnums), argnums)


def _check_number(result: Any) -> None:
    if not isinstance(result, Tensor) or result.ndim:
        what = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise RuntimeError(
            f"grad() needs a function that gives a Tensor without dimensions, but it gave {what}"
        )


def _in_order(function: str, name: str, value: Any, of: str, model: Any) -> list[Tensor]:
    """The Tensors of ``value``, a tree of the form and shapes of ``model``."""
    try:
        found = list(trees.in_order_of(model, value))
    except ValueError:
        raise RuntimeError(
            f"{function}: Expected {name} to have the same python structure (pytree) as {of}"
        ) from None
    for index, (tensor, expected) in enumerate(zip(found, trees.leaves(model), strict=True)):
        if tensor.shape != expected.shape:
            raise RuntimeError(
                f"{function}: {name} must have the shapes of {of}, but Tensor {index} has shape "
                f"{tensor.shape}, not {expected.shape}"
            )
    return found
