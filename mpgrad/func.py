"""``mg.func``: derivatives of functions, as functions.

The names are those of ``torch.func``; ``value_and_grad`` is the form of ``grad_and_value`` in JAX
and HIPS autograd.
"""

from __future__ import annotations

# Its functions make Tensors, which must have their methods.
import mpgrad.tensor_methods  # noqa: F401  isort: skip

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import numpy as np

from mpgrad.autograd import functional
from mpgrad.autograd.backward import grad as gradients
from mpgrad.base.missing_names import missing_from as _missing_from
from mpgrad.graph.grad_modes import enable_grad, is_grad_enabled
from mpgrad.ops.creation import from_numpy, zeros_like
from mpgrad.tensors.tensor import Tensor

__all__ = ["grad", "grad_and_value", "hessian", "jacrev", "value_and_grad", "vjp"]

Argnums = int | tuple[int, ...]


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
    """As :func:`grad_and_value`, in the order of JAX and HIPS autograd: value, gradient."""
    both = grad_and_value(func, argnums, has_aux)

    @wraps(func)
    def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
        found, value = both(*args, **kwargs)
        return value, found

    return value_and_gradient


def grad_and_value(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """As :func:`grad`, but returns ``(gradient, value)``; with ``has_aux`` ``(gradient, (value,
    other))``.

    Raises (when it is called):
        RuntimeError: ``func`` does not return a number.
    """
    places = argnums if isinstance(argnums, tuple) else (argnums,)

    @wraps(func)
    def gradient_and_value(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        nested = is_grad_enabled() and any(t.requires_grad for t in _leaves(args))
        with enable_grad():
            for place in places:
                given[place] = _mapped(_input, given[place])
            inputs = [t for place in places for t in _leaves(given[place])]
            found = func(*given, **kwargs)
            result = found[0] if has_aux else found
            _check_number(result)
            values: Any = [None] * len(inputs)
            if result.requires_grad:
                values = gradients(result, inputs, create_graph=nested, allow_unused=True)
        by_input = {
            id(t): zeros_like(t) if value is None else value
            for t, value in zip(inputs, values, strict=True)
        }
        trees = tuple(_mapped(lambda t: by_input[id(t)], given[place]) for place in places)
        gradient = trees if isinstance(argnums, tuple) else trees[0]
        value = result if nested else result.detach()
        return gradient, (value, found[1]) if has_aux else value

    return gradient_and_value


def vjp(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """``func(*primals)``, and a function from a gradient of it to the gradients of ``primals``."""
    with enable_grad():
        inputs = [_input(value) for value in primals]
        result = func(*inputs)

    def pull(*cotangents: Any) -> tuple[Tensor, ...]:
        found = gradients(result, inputs, cotangents, retain_graph=True, allow_unused=True)
        return tuple(
            zeros_like(t) if value is None else value
            for t, value in zip(inputs, found, strict=True)
        )

    return _mapped(lambda t: t.detach(), result), pull


def jacrev(func: Callable[..., Any], argnums: int = 0) -> Callable[..., Any]:
    """The function that returns the Jacobian of ``func`` with respect to one argument."""
    return _with_respect_to(functional.jacobian, func, argnums)


def hessian(func: Callable[..., Any], argnums: int = 0) -> Callable[..., Any]:
    """The function that returns the Hessian of ``func``, which returns a single number."""
    return _with_respect_to(functional.hessian, func, argnums)


def _with_respect_to(measure: Any, func: Callable[..., Any], place: int) -> Callable[..., Any]:
    @wraps(func)
    def derivative(*args: Any, **kwargs: Any) -> Any:
        def of_one(value: Tensor) -> Any:
            return func(*args[:place], value, *args[place + 1 :], **kwargs)

        return measure(of_one, _tensor(args[place]))

    return derivative


def _tensor(value: Any) -> Tensor:
    if isinstance(value, np.ndarray):
        return from_numpy(value)
    if not isinstance(value, Tensor):
        raise TypeError(
            f"a derivative is taken with respect to Tensors, not to {type(value).__name__}"
        )
    return value


def _input(value: Any) -> Tensor:
    """A new Tensor that requires grad, with the history of ``value``."""
    tensor = _tensor(value)
    return tensor[...] if tensor.requires_grad else tensor.detach().requires_grad_()


def _check_number(result: Any) -> None:
    if not isinstance(result, Tensor) or result.ndim:
        what = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise RuntimeError(
            f"grad() needs a function that gives a Tensor without dimensions, but it gave {what}"
        )


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """``function`` of each leaf of lists, tuples and dictionaries, in the same form."""
    if isinstance(tree, list | tuple):
        return type(tree)(_mapped(function, item) for item in tree)
    if isinstance(tree, dict):
        return {key: _mapped(function, item) for key, item in tree.items()}
    return function(tree)


def _leaves(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, list | tuple):
        for item in tree:
            yield from _leaves(item)
    elif isinstance(tree, dict):
        yield from _leaves(list(tree.values()))
    elif isinstance(tree, Tensor):
        yield tree


__getattr__ = _missing_from(__name__)
