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
from mpgrad.nn.module import Module
from mpgrad.ops.creation import from_numpy, tensor, zeros_like
from mpgrad.ops.indexing import select
from mpgrad.ops.shape import stack
from mpgrad.tensors.tensor import Tensor

__all__ = [
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "stack_module_state",
    "value_and_grad",
    "vjp",
    "vmap",
]

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
    """``func(*primals)``, and a function from a gradient of it to the gradients of ``primals``.

    Args:
        func: a function of Tensors, which returns a Tensor or a tuple of them.
        primals: Tensors, or NumPy arrays, which become Tensors.

    Returns:
        (the result, a function). That takes one Tensor of the shape of each result, and returns a
        tuple with one of the shape of each primal; it may be called several times.
    """
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
    """The function that returns the Jacobian of ``func`` with respect to one argument.

    Args:
        func: a function of Tensors, which returns a Tensor.
        argnums: the number of the argument.

    Returns:
        A function of the same arguments, whose result has the shape (that of the result of
        ``func``, that of the argument). It takes one backward for each element of the result.
    """
    return _with_respect_to(functional.jacobian, func, argnums)


#: Here it is computed as ``jacrev``: there are no derivatives forward.
jacfwd = jacrev


def jvp(func: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
    """``func(*primals)``, and how it changes along ``tangents``.

    ``func`` is differentiated twice backward.

    Args:
        func: a function of Tensors, which returns a Tensor or a tuple of them.
        primals: a tuple of Tensors.
        tangents: a tuple of Tensors of the shapes of ``primals``.

    Returns:
        (the result, its change: of the same shape).

    Raises:
        RuntimeError: ``tangents`` do not have the shapes of ``primals``.
    """
    nested = is_grad_enabled() and any(t.requires_grad for t in _leaves((primals, tangents)))
    return functional.jvp(func, tuple(primals), tuple(tangents), create_graph=nested)


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """``func`` of each slice of the arguments, one after another; the results are stacked.

    Args:
        func: a function of Tensors, or of lists, tuples and dictionaries of them.
        in_dims: along which dimension there are slices, for each argument or all; None: every call
            gets the whole argument.
        out_dims: where the slices are in the results.
        randomness: without effect: each slice draws its own numbers.
        chunk_size: without effect.

    Returns:
        A function of the same arguments. It can be differentiated.

    Raises (when it is called):
        ValueError: there is nothing to map over, or the lengths differ.
    """

    @wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        dims = in_dims if isinstance(in_dims, tuple | list) else (in_dims,) * len(args)
        if len(dims) != len(args):
            raise ValueError(f"vmap: in_dims has {len(dims)} entries for {len(args)} arguments")
        pairs = [*zip(args, dims, strict=True), *((value, 0) for value in kwargs.values())]
        lengths = {n for value, dim in pairs for n in _lengths(value, dim)}
        if len(lengths) != 1:
            raise ValueError(
                "vmap: expected all tensors to have the same size in the mapped dimension, got "
                f"sizes {sorted(lengths)} for the mapped dimension"
            )
        found = [
            func(
                *(_slice(value, dim, at) for value, dim in zip(args, dims, strict=True)),
                **{name: _slice(value, 0, at) for name, value in kwargs.items()},
            )
            for at in range(lengths.pop())
        ]
        return _stacked(found, out_dims)

    return mapped


def _lengths(tree: Any, dim: Any) -> Iterator[int]:
    """The lengths of all leaves along ``dim``, which may be a tree of the same form."""
    if dim is None:
        return
    if isinstance(dim, tuple | list):
        for item, place in zip(tree, dim, strict=True):
            yield from _lengths(item, place)
    elif isinstance(dim, dict):
        for key, item in tree.items():
            yield from _lengths(item, dim[key])
    else:
        yield from (tensor.shape[dim] for tensor in _leaves(tree))


def _slice(tree: Any, dim: Any, at: int) -> Any:
    if dim is None:
        return tree
    if isinstance(dim, tuple | list):
        return type(tree)(_slice(item, d, at) for item, d in zip(tree, dim, strict=True))
    if isinstance(dim, dict):
        return {key: _slice(item, dim[key], at) for key, item in tree.items()}
    return _mapped(lambda t: select(t, dim, at) if isinstance(t, Tensor) else t, tree)


def _stacked(found: list[Any], dim: Any) -> Any:
    first = found[0]
    if isinstance(first, list | tuple):
        dims = dim if isinstance(dim, tuple | list) else (dim,) * len(first)
        columns = zip(*found, strict=True)
        return type(first)(_stacked(list(c), d) for c, d in zip(columns, dims, strict=True))
    if isinstance(first, dict):
        return {key: _stacked([item[key] for item in found], dim) for key in first}
    if not isinstance(first, Tensor):
        raise ValueError(f"vmap: the function must return Tensors, but it gave {type(first)}")
    return first if dim is None else stack(found, dim)


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Any,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """``module(*args, **kwargs)`` with other Tensors for some of its parameters and buffers.

    Args:
        module: the Module, which is as before afterwards.
        parameter_and_buffer_dicts: Tensors by name, or several such dictionaries.
        args: one argument, or a tuple of them.
        kwargs: arguments by name.
        tie_weights: where one parameter has several names, each may stand for all.
        strict: every parameter and buffer has to be given.

    Raises:
        RuntimeError: ``strict``, and a name is missing or unknown.
    """
    given: dict[str, Tensor] = {}
    several = isinstance(parameter_and_buffer_dicts, list | tuple)
    for part in parameter_and_buffer_dicts if several else [parameter_and_buffer_dicts]:
        given |= part
    places = {
        f"{path}.{name}" if path else name: (table, name)
        for path, inner in module.named_modules(remove_duplicate=False)
        for table in (inner._parameters, inner._buffers)
        for name, value in table.items()
        if value is not None
    }
    unknown, absent = set(given) - set(places), set(places) - set(given)
    if strict and (unknown or absent):
        raise RuntimeError(
            f"functional_call: unexpected names {sorted(unknown)}, missing {sorted(absent)}"
        )
    held: dict[str, Any] = {name: table[last] for name, (table, last) in places.items()}
    by_id = {id(held[name]): value for name, value in given.items() if name in held}
    try:
        for name, (table, last) in places.items():
            tied = by_id.get(id(held[name]), held[name]) if tie_weights else held[name]
            table[last] = given.get(name, tied)  # type: ignore[index]
        given_args = () if args is None else args if isinstance(args, tuple) else (args,)
        return module(*given_args, **(kwargs or {}))
    finally:
        for name, (table, last) in places.items():
            table[last] = held[name]  # type: ignore[index]


def stack_module_state(models: list[Module]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters of Modules of one kind, stacked, and their buffers.

    ``vmap`` of :func:`functional_call` runs all of the Modules on them.

    Args:
        models: with parameters of equal names and shapes.

    Returns:
        (parameters, buffers): by name a Tensor whose first dimension is ``len(models)``. The
        parameters are leaves of their own.
    """
    parameters, buffers = (
        {name: stack([t.detach() for t in same]) for name, *same in _by_name(models, kind)}
        for kind in ("named_parameters", "named_buffers")
    )
    return {name: value.requires_grad_() for name, value in parameters.items()}, buffers


def _by_name(models: list[Module], kind: str) -> Iterator[list[Any]]:
    for entries in zip(*(getattr(model, kind)() for model in models), strict=True):
        yield [entries[0][0], *(tensor for _, tensor in entries)]


def hessian(func: Callable[..., Any], argnums: int = 0) -> Callable[..., Any]:
    """The function that returns the Hessian of ``func``, which returns a single number.

    Args:
        func: a function of Tensors.
        argnums: the number of the argument.

    Returns:
        A function of the same arguments, whose result has the shape of the argument twice.
    """
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
    if isinstance(value, float):
        return tensor(value)
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
