"""Function: what users subclass to give an operation its own forward and backward."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from mpgrad.autograd.function_node import (
    FunctionContext,
    FunctionNode,
    PortableContext,
    run_function_backward,
)
from mpgrad.autograd.grad_mode import is_grad_enabled, no_grad
from mpgrad.autograd.node import Edge, Node
from mpgrad.tensor import Tensor, gradient_edge, metadata_of

__all__ = [
    "Function",
    "FunctionContext",
    "FunctionNode",
    "PortableContext",
    "once_differentiable",
    "run_function_backward",
]


class Function:
    """Base of custom operations; subclass it and call ``apply``.

    Example::

        class Square(mg.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.numpy() ** 2

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return grad * 2 * x

        y = Square.apply(x)

    Attributes:
        run_on: where backward may run. None: on a worker if what it reads cannot change (see
            ``mpgrad.autograd.shipping``), else in the calling process. ``"worker"``: always on a
            worker; a promise that it depends on nothing but its arguments and constants.
            ``"client"``: always in the calling process.
    """

    run_on: ClassVar[str | None] = None

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs: ``forward(ctx, *args)``, or ``forward(*args)`` where the class
        also has ``setup_context``. Returns a Tensor, a NumPy array, or a tuple."""
        raise NotImplementedError(
            "You must implement the forward function for custom autograd.Function."
        )

    @staticmethod
    def setup_context(ctx: FunctionContext, inputs: tuple[Any, ...], output: Any) -> None:
        """Fill ``ctx`` after a ``forward`` that does not take it."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: FunctionContext, *grads: Any) -> Any:
        """Return the gradient of each argument of forward (None where there is none).

        It gets one gradient per output of forward.
        """
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom "
            "autograd.Function to use it with backward mode AD."
        )

    #: PyTorch's other name for backward.
    vjp = backward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "Legacy autograd function with non-static forward method is deprecated. Please use "
            "new-style autograd function with static forward method. "
            f"(Call {type(self).__name__}.apply(...) on the class, not on an instance.)"
        )

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run forward with recording off and record one Node for all of it.

        Only Tensors that are arguments themselves are tracked, not those inside lists.

        Args:
            args: passed to forward.
            kwargs: only with ``setup_context``; bound to their positions.

        Raises:
            TypeError: keyword arguments without ``setup_context``.
        """
        cls._checked_run_on()
        separate = cls.setup_context is not Function.setup_context
        if separate:
            args = _positional(cls.forward, args, kwargs)
        elif kwargs:
            raise TypeError(
                f"{cls.__name__}.apply() got an unexpected keyword argument {next(iter(kwargs))!r}:"
                " pass the arguments of forward by position"
            )
        needs = tuple(isinstance(value, Tensor) and value._requires_grad for value in args)
        ctx = FunctionContext(needs)
        with no_grad():
            if separate:
                raw = cls.forward(*args)
                cls.setup_context(ctx, args, raw)
            else:
                raw = cls.forward(ctx, *args)
        several = isinstance(raw, tuple)
        produced = raw if several else (raw,)
        outputs = _wrap_outputs(produced, args)
        if is_grad_enabled() and True in needs:
            marked = [any(value is m for m in ctx._non_differentiable) for value in produced]
            _record(cls, ctx, args, needs, outputs, marked)
        return tuple(outputs) if several else outputs[0]

    @classmethod
    def _checked_run_on(cls) -> str | None:
        if cls.run_on not in (None, "worker", "client"):
            raise ValueError(
                f"{cls.__name__}.run_on is {cls.run_on!r}; it must be None, 'worker' or 'client'"
            )
        return cls.run_on

    @classmethod
    def _backward_rule(cls) -> Callable[..., Any]:
        """The user's backward, under either of its names.

        Raises:
            RuntimeError: the class has both names.
            NotImplementedError: it has neither.
        """
        has_backward = cls.backward is not Function.backward
        has_vjp = cls.vjp is not Function.vjp
        if has_backward and has_vjp:
            raise RuntimeError(
                "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. "
                f"Remove one of them from {cls.__name__}."
            )
        if not (has_backward or has_vjp):
            raise NotImplementedError(
                f"{cls.__name__}: You must implement either the backward or vjp method for your "
                "custom autograd.Function to use it with backward mode AD."
            )
        return cls.backward if has_backward else cls.vjp


def _positional(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments in order, with forward's defaults filled in."""
    bound = inspect.signature(forward).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.args


def _wrap_outputs(raw: Sequence[Any], args: tuple[Any, ...]) -> list[Any]:
    """Tensors that may enter the graph: none of them an input or part of another graph."""
    inputs = [value for value in args if isinstance(value, Tensor)]
    fresh: dict[int, Tensor] = {}
    return [_wrap_output(value, inputs, fresh) for value in raw]


def _wrap_output(value: Any, inputs: list[Tensor], fresh: dict[int, Tensor]) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        array = np.asarray(value)
        source = next((t for t in inputs if np.may_share_memory(t._array, array)), None)
        counter = None if source is None else source._version_counter
        return Tensor(array, version_counter=counter)
    if not isinstance(value, Tensor):
        return value
    if id(value) in fresh:
        return fresh[id(value)]
    taken = value._requires_grad or any(value is tensor for tensor in inputs)
    # Recording must not rewrite the history of a tensor that somebody else holds.
    wrapped = Tensor(value._array, version_counter=value._version_counter) if taken else value
    fresh[id(value)] = wrapped
    return wrapped


def _record(
    cls: type[Function],
    ctx: FunctionContext,
    args: tuple[Any, ...],
    needs: tuple[bool, ...],
    outputs: list[Any],
    marked: list[bool],
) -> None:
    """Make the Node and give the differentiable outputs their place in the graph.

    ``marked`` says which outputs the user declared to be non-differentiable.
    """
    differentiable = [
        isinstance(value, Tensor) and value._array.dtype.kind in "fc" and not excluded
        for value, excluded in zip(outputs, marked, strict=True)
    ]
    if True not in differentiable:
        return
    ctx._inputs = tuple(metadata_of(v) if isinstance(v, Tensor) else None for v in args)
    ctx._outputs = tuple(metadata_of(v) if isinstance(v, Tensor) else None for v in outputs)
    edges: list[Edge | None] = [
        gradient_edge(value) if needed else None for value, needed in zip(args, needs, strict=True)
    ]
    node = FunctionNode(cls, ctx, edges)
    for output_nr, (value, wanted) in enumerate(zip(outputs, differentiable, strict=True)):
        if wanted:
            value._grad_fn, value._output_nr, value._requires_grad = node, output_nr, True
    node.finish(outputs)


class _DelayedError(Node):
    """Raises as soon as somebody differentiates through it."""

    __slots__ = ()

    def name(self) -> str:
        return "DelayedError"

    def apply(self, xp: Any, grads: list[Any], needs: Sequence[bool]) -> list[Any]:
        raise RuntimeError(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        )

    def apply_recorded(self, grads: Sequence[Any], needs: Sequence[bool]) -> list[Any]:
        return self.apply(None, list(grads), needs)


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a ``backward`` that cannot be differentiated itself.

    It runs with recording off; with ``create_graph=True``, differentiating its result raises.
    """

    @functools.wraps(backward)
    def wrapper(ctx: FunctionContext, *grads: Any) -> Any:
        with no_grad():
            returned = backward(ctx, *grads)
        wanted = [g for g in grads if isinstance(g, Tensor) and g._requires_grad]
        if not is_grad_enabled() or not wanted:
            return returned
        if isinstance(returned, tuple):
            return tuple(_forbid_differentiation(value, wanted) for value in returned)
        return _forbid_differentiation(returned, wanted)

    return wrapper


def _forbid_differentiation(value: Any, grads: list[Tensor]) -> Any:
    """``value`` as a tensor whose history is one :class:`_DelayedError` behind ``grads``."""
    array = value._array if isinstance(value, Tensor) else value
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fc":
        return value
    tensor = Tensor(array)
    node = _DelayedError([gradient_edge(grad) for grad in grads], [metadata_of(tensor)])
    tensor._grad_fn, tensor._requires_grad = node, True
    return tensor
