"""Function: what users subclass to give an operation its own forward and backward."""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, ClassVar

from mpgrad.autograd.function_nodes.context import FunctionContext
from mpgrad.autograd.function_nodes.function_node import (
    FunctionNode,
    PortableContext,
    node_class,
    run_function_backward,
)
from mpgrad.autograd.function_nodes.outputs import outputs_of
from mpgrad.autograd.function_nodes.stopping import refused
from mpgrad.autograd.profiling.ranges import FUNCTION, span
from mpgrad.base.accidental_ends import accidental_end
from mpgrad.recording.graph.grad_modes import GRAD_MODE, is_grad_enabled, no_grad
from mpgrad.recording.tensors.tensor import Tensor, metadata_of, recorded_edges

__all__ = [
    "Function",
    "FunctionContext",
    "FunctionNode",
    "BackwardCFunction",
    "InplaceFunction",
    "PortableContext",
    "once_differentiable",
    "run_function_backward",
]


class _BackwardClass:
    """``MyFn._backward_cls``: the class of the Nodes that ``MyFn.apply`` records."""

    def __get__(self, instance: Any, owner: type[Any]) -> type[FunctionNode]:
        return node_class(owner)


#: Attributes that old code reads on an instance of a Function, which once was the Node.
_OF_ITS_NODE = frozenset(
    [
        "_register_hook_dict",
        "name",
        "next_functions",
        "register_hook",
        "register_prehook",
        "saved_tensors",
    ]
)

#: PyTorch's name of the class of all Nodes of custom Functions.
BackwardCFunction = FunctionNode


class Function:
    """Base of custom operations; subclass it and call ``apply``.

    For type checkers its methods take anything, so that yours may say what they take.

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
            ``mpgrad.calls.custom_functions``), else in the calling process. ``"worker"``: always on
            a worker; a promise that it depends on nothing but its arguments and constants.
            ``"client"``: always in the calling process.
        clear_saved_tensors_on_access: whether ctx drops its saved tensors when backward reads
            them, so that their memory is free before backward ends; a second access is an error.
    """

    run_on: ClassVar[str | None] = None
    clear_saved_tensors_on_access: ClassVar[bool] = False
    _backward_cls = _BackwardClass()
    #: Whether its Nodes stand for branches that workers have recorded (``mpgrad.calls``).
    _is_branch: ClassVar[bool] = False

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs: ``forward(ctx, *args)``, or ``forward(*args)`` if the class also has
        ``setup_context``. Returns a Tensor, a NumPy array, or a tuple."""
        raise NotImplementedError(
            "You must implement the forward function for custom autograd.Function."
        )

    @staticmethod
    def setup_context(*args: Any, **kwargs: Any) -> Any:
        """Fill ``ctx`` after a ``forward`` that does not take it:
        ``setup_context(ctx, inputs, output)``."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(*args: Any, **kwargs: Any) -> Any:
        """``backward(ctx, *grads)``: the gradient of each argument of forward, or None.

        It gets one gradient per output of forward.
        """
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom "
            "autograd.Function to use it with backward mode AD."
        )

    #: PyTorch's other name for backward.
    vjp = backward

    @staticmethod
    def _on_last_run(ctx: FunctionContext) -> None:
        """Is called when the backward of ``ctx`` has run and will not run again."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warnings.warn(
            f"{type(self)} should not be instantiated. Methods on autograd functions are all "
            "static, so you should invoke them on the class itself. Instantiating an autograd "
            "function will raise an error in a future version.",
            DeprecationWarning,
            stacklevel=2,
        )

    def __getattr__(self, name: str) -> Any:
        if name == "metadata":
            raise RuntimeError(
                "You attempted to access the metadata of a custom Function that has no graph (the "
                "underlying PyNode has already been deallocated): look at y.grad_fn.metadata of "
                "an output y."
            )
        if name in _OF_ITS_NODE:
            raise RuntimeError(
                f"Attribute {name!r} is invalid for an instance of a Function, which is not part "
                "of a graph. Call the Function by its apply(), and use y.grad_fn of an output y."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

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
            kwargs: bound to their positions.

        Raises:
            TypeError: the arguments do not fit forward, or it saved a value that is not a Tensor.
            RuntimeError: forward changed a leaf that requires grad (``ctx.mark_dirty``), ctx
                declares a value that forward did not take or return, or StopIteration left it.
        """
        if cls.run_on is not None:
            cls._checked_run_on()
        separate = cls.setup_context is not Function.setup_context
        if kwargs or separate:
            args = _positional(cls.forward, args, kwargs, has_ctx=not separate)
        needs = tuple(
            [
                isinstance(value, Tensor)
                and (value._requires_grad or (value._view is not None and value.requires_grad))
                for value in args
            ]
        )
        ctx = FunctionContext(needs, clears_on_access=cls.clear_saved_tensors_on_access)
        recorded = GRAD_MODE.enabled
        # Before forward, which may rewrite the history of an input (see mark_dirty).
        node = _node(cls, ctx, args, needs) if recorded and True in needs else None
        GRAD_MODE.enabled = False
        started = perf_counter()
        try:
            with span(cls.__name__, FUNCTION, -1 if node is None else node.sequence_nr):
                if separate:
                    raw = cls.forward(*args)
                    cls.setup_context(ctx, args, raw)
                else:
                    raw = cls.forward(ctx, *args)
        except StopIteration as error:
            raise accidental_end(f"The forward of {cls.__name__}") from error
        finally:
            GRAD_MODE.enabled = recorded
        if node is not None:
            caller = sys._getframe(1)
            node.called = caller.f_code, caller.f_lasti, perf_counter() - started
        several = isinstance(raw, tuple)
        produced = raw if several else (raw,)
        outputs = outputs_of(produced, args, ctx, node, has_setup_context=separate)
        return tuple(outputs) if several else outputs[0]

    @classmethod
    def map(cls, *iterables: Iterable[Any], changes: Sequence[str] = ()) -> list[Any]:
        """``[cls.apply(*item) for item in zip(*iterables)]``, forward and backward in workers.

        The Nodes have the class, the names, the edges and the hooks that ``apply`` gives them; each
        ctx stays in the worker that has made it, and is never pickled. See ``mpgrad.parallel_map``.

        Args:
            iterables: the arguments, one from each for a call.
            changes: names of what forward or backward may change although that is lost: a cache.

        Raises:
            As ``mpgrad.parallel_map``.
        """
        if cls._parallel_map is None:
            raise RuntimeError("import the names of mpgrad from mpgrad itself")
        found: list[Any] = cls._parallel_map(cls.apply, *iterables, changes=changes)
        return found

    #: ``mpgrad.parallel.maps.parallel_map``, which stands on this file; set by ``tensor_methods``.
    _parallel_map: ClassVar[Any] = None

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
        backward, vjp = cls.backward, cls.vjp
        has_backward, has_vjp = backward is not _UNDEFINED, vjp is not _UNDEFINED
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
        return backward if has_backward else vjp


#: What ``backward`` and ``vjp`` are where a class does not define them.
_UNDEFINED = Function.backward


def _positional(
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    has_ctx: bool,
) -> tuple[Any, ...]:
    """The arguments in order; for a forward without ctx, with its defaults.

    Raises:
        TypeError: they do not fit, or one is for a keyword-only parameter.
    """
    code = getattr(forward, "__code__", None)
    if not kwargs and (has_ctx or (code and code.co_argcount == len(args))):
        return args
    signature = inspect.signature(forward)
    bound = signature.bind(None, *args, **kwargs) if has_ctx else signature.bind(*args, **kwargs)
    if bound.kwargs:
        name = next(iter(bound.kwargs))
        raise TypeError(
            f"forward() got an unexpected keyword argument {name!r}: apply passes everything by "
            "position"
        )
    if has_ctx:
        return bound.args[1:]
    bound.apply_defaults()
    return bound.args


def _node(
    cls: type[Function], ctx: FunctionContext, args: tuple[Any, ...], needs: tuple[bool, ...]
) -> FunctionNode:
    ctx._inputs = tuple([metadata_of(v) if isinstance(v, Tensor) else None for v in args])
    edges, leaves = recorded_edges(args, needs)
    node = node_class(cls)(cls, ctx, edges)
    node.leaves = leaves
    return node


class InplaceFunction(Function):
    """PyTorch's older base for Functions that may work in place; the same as a Function."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a ``backward`` that cannot be differentiated itself.

    It runs with recording off; with ``create_graph=True``, differentiating its result raises an
    error.
    """

    @functools.wraps(backward)
    def wrapper(ctx: FunctionContext, *grads: Any) -> Any:
        with no_grad():
            returned = backward(ctx, *grads)
        wanted = [g for g in grads if isinstance(g, Tensor) and g.requires_grad]
        if not is_grad_enabled() or not wanted:
            return returned
        several = isinstance(returned, tuple)
        stopped = refused(_TWICE, returned if several else (returned,), wanted)
        return stopped if several else stopped[0]

    return wrapper


_TWICE = "trying to differentiate twice a function that was marked with @once_differentiable"
