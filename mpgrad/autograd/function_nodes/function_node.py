"""FunctionNode: the recorded Node of a custom Function, and the one way to run its backward.

The client and the workers both use ``run_function_backward``: a worker rebuilds the ctx from a
:class:`PortableContext` and calls the same function, so that the place does not matter. This file
does not know how code or arrays are sent.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from types import CodeType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpgrad.arrays.cuda.device_arrays import zeros
from mpgrad.autograd.function_nodes.context import FunctionContext, Metadata, running_backwards
from mpgrad.recording.dispatch.saved_attributes import SavedTensorHandle, function_handles
from mpgrad.recording.graph.anomaly import mode as anomaly
from mpgrad.recording.graph.anomaly import origin
from mpgrad.recording.graph.grad_modes import GRAD_MODE, enable_grad
from mpgrad.recording.graph.node import FREED_MESSAGE, SEQUENCE, Edge, InputMetadata, Node
from mpgrad.recording.tensors.copy_on_write import are_fresh, lend, own, take_back
from mpgrad.recording.tensors.hooks_in_force import HOOKS
from mpgrad.recording.tensors.saved_tensor import SavedTensor
from mpgrad.recording.tensors.tensor import Tensor

#: The slot of an output that is not a tensor. No gradient flows into it, but the outputs after it
#: keep PyTorch's numbers.
_NO_TENSOR = InputMetadata((), np.dtype(np.bool_))


#: See ``call_sites``.
Called: TypeAlias = tuple[CodeType, int, float]


class FunctionNode(Node):
    """The Node that ``Function.apply`` records: one edge per argument of forward.

    Each Function has a class of its own for it (see ``node_class``).
    """

    __slots__ = ("called", "ctx", "function", "has_packed")

    takes_undefined = True
    is_user_code = True
    #: Tells the classes of this process apart, also after they are gone.
    number = 0

    def __init__(
        self, function: type[Any], ctx: FunctionContext, next_edges: Sequence[Edge | None]
    ) -> None:
        # Made in each step: it does not call Node.__init__. ``finish`` sets input_metadata.
        self.next_edges = tuple(next_edges)
        self.leaves: Any = None
        self.input_metadata = ()
        self.sequence_nr = SEQUENCE.next()
        self.hooks = None
        self._metadata = origin() if anomaly.enabled else None
        if self._metadata is not None:
            ctx.metadata.update(self._metadata)
        self.function = function
        self.ctx = ctx
        self.has_packed = False
        #: The code that has called ``apply``, the place in it, and the seconds that forward took.
        self.called: Called | None = None
        ctx._node = weakref.ref(self)

    def finish(self, outputs: Sequence[Any], differentiable: Sequence[bool]) -> None:
        """Become the history of forward's ``outputs``, as far as they are ``differentiable``.

        If none is, nothing refers to this Node, and it is freed after the call.
        """
        ctx = self.ctx
        if not ctx._materialize_non_diff_grads:
            ctx._outputs = tuple(
                [
                    meta if at else None
                    for meta, at in zip(ctx._outputs, differentiable, strict=True)
                ]
            )
        metadata: Any = ctx._outputs
        self.input_metadata = (
            tuple([meta or _NO_TENSOR for meta in metadata]) if None in metadata else metadata
        )
        for output_nr, (value, wanted) in enumerate(zip(outputs, differentiable, strict=True)):
            if wanted:
                value._grad_fn, value._output_nr, value._requires_grad = self, output_nr, True
                if value._view is not None:  # what forward has changed is in this history
                    value._view.version = value._version_counter.value
        if ctx._to_save:
            produced = {*map(id, outputs)}
            ctx._saved = tuple(
                [
                    None if one is None else SavedTensor(one, is_output=id(one) in produced)
                    for one in ctx._to_save
                ]
            )
        ctx._to_save = ctx._dirty = ctx._non_differentiable = ()
        if HOOKS.entered:
            self.has_packed = bool(ctx._saved) and HOOKS.innermost() is not None

    def __getattr__(self, name: str) -> Any:
        # In PyTorch the Node is the ctx: attributes that the user sets on one are on the other.
        if name != "ctx" and name in vars(self.ctx):
            return vars(self.ctx)[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """As in PyTorch: of the arguments, only the tensors count."""
        found = super().next_functions
        return tuple(found[position] for position in self.outputs_shown())

    def outputs_shown(self) -> tuple[int, ...]:
        return tuple(at for at, meta in enumerate(self.ctx._inputs) if meta is not None)

    @property
    def metadata(self) -> dict[str, Any]:
        return self.ctx.metadata

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """As ``ctx.needs_input_grad``."""
        return self.ctx.needs_input_grad

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """As ``ctx.saved_tensors``."""
        return self.ctx.saved_tensors

    @property
    def _raw_saved_tensors(self) -> tuple[SavedTensorHandle, ...]:
        """A handle for each saved tensor, to register hooks on."""
        return function_handles(self, self._saved, len(self._saved()))

    def _saved(self) -> Sequence[Any]:
        if self.ctx._saved is None:
            raise RuntimeError(FREED_MESSAGE)
        return self.ctx._saved

    def apply(self, xp: Any, grads: list[Any], needs: Sequence[bool]) -> list[Any]:
        return run_function_backward(self.function, self.ctx, grads, needs)

    def apply_recorded(
        self, grads: Sequence[Tensor | None], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        """Run backward with recording on: for ``create_graph=True``.

        Args:
            grads: gradients of the outputs; they may require grad themselves.
            needs: for each argument of forward, whether its gradient is needed.
        """
        with enable_grad():
            return [
                value if value is None or isinstance(value, Tensor) else Tensor(value)
                for value in _checked_gradients(self.function, self.ctx, list(grads), needs)
            ]

    def release_saved(self) -> None:
        # A Function that saved nothing may run again, as in PyTorch.
        ctx = self.ctx
        if ctx._saved:
            # If a worker ran backward, it is unknown whether backward read them.
            ctx._saved, ctx._was_accessed = None, ctx._clears_on_access
        self.function._on_last_run(ctx)

    def portable_context(self) -> PortableContext:
        """The state that a worker needs to run backward.

        Raises:
            RuntimeError: a saved tensor was freed, or changed in place.
        """
        ctx = self.ctx
        if ctx._saved is None:
            raise RuntimeError(FREED_MESSAGE)
        arrays: list[Any] = []
        requires_grad: list[bool] = []
        for item in ctx._saved:
            if isinstance(item, SavedTensor):
                arrays.append(item.array(self))
                requires_grad.append(item.requires_grad)
            else:
                arrays.append(None)
                requires_grad.append(False)
        return PortableContext(
            tuple(arrays),
            vars(ctx),
            ContextDescription(
                tuple(requires_grad),
                ctx._needs_input_grad,
                ctx._materialize_grads,
                ctx._inputs,
                ctx._outputs,
            ),
        )


_numbers = itertools.count(1)
#: The class of the Nodes of each Function. It does not refer to the Function, so that both are
#: freed together.
_classes: weakref.WeakKeyDictionary[type[Any], type[FunctionNode]] = weakref.WeakKeyDictionary()
_branch_classes: weakref.WeakKeyDictionary[type[Any], type[FunctionNode]] = (
    weakref.WeakKeyDictionary()
)


def node_class(function: type[Any]) -> type[FunctionNode]:
    """The class of the Nodes of ``function``: ``MyFnBackward`` for ``MyFn``."""
    found = _classes.get(function)
    if found is None:
        named = {"__slots__": (), "number": next(_numbers)}
        made = type(f"{function.__name__}Backward", (FunctionNode,), named)
        found = _classes.setdefault(function, made)
    return found


def branch_class(function: type[Any]) -> type[FunctionNode]:
    """The class of the Nodes that ``function.map`` records: as ``node_class``, with its name. It is
    a class of its own, because a graph is remembered by the classes of its Nodes, and what runs for
    a branch is not ``function.backward``."""
    found = _branch_classes.get(function)
    if found is None:
        usual = node_class(function)
        made = type(usual.__name__, (usual,), {"__slots__": (), "number": next(_numbers)})
        found = _branch_classes.setdefault(function, made)
    return found


# ---------------------------------------------------------------------- a ctx that can be sent


class ContextDescription(NamedTuple):
    """The state of a ctx without arrays and attributes; the same in each step of a training loop.

    Attributes:
        requires_grad: of the saved tensors.
        needs_input_grad: as forward saw it.
        materialize_grads: whether backward gets zeros for undefined gradients.
        inputs, outputs: the metadata of forward's arguments and outputs; None: not a tensor.
    """

    requires_grad: tuple[bool, ...]
    needs_input_grad: tuple[bool, ...]
    materialize_grads: bool
    inputs: tuple[Metadata, ...]
    outputs: tuple[Metadata, ...]


class PortableContext(NamedTuple):
    """A ctx in parts: arrays are separate from the attributes, because they are sent as handles.

    ``attributes`` is the live dictionary of the ctx: encode it before user code runs again.
    """

    saved: tuple[np.ndarray[Any, Any] | None, ...]
    attributes: dict[str, Any]
    description: ContextDescription

    def rebuild(self, function: type[Any]) -> FunctionContext:
        """A ctx for one run of ``function.backward``, equal to the client's for that function."""
        described = self.description
        ctx = FunctionContext(
            described.needs_input_grad, clears_on_access=function.clear_saved_tensors_on_access
        )
        ctx._saved = tuple(
            [
                None if array is None else _tensor_of_client(array, requires_grad)
                for array, requires_grad in zip(self.saved, described.requires_grad, strict=True)
            ]
        )
        ctx._materialize_grads = described.materialize_grads
        ctx._inputs, ctx._outputs = described.inputs, described.outputs
        vars(ctx).update(self.attributes)
        return ctx


def _tensor_of_client(array: np.ndarray[Any, Any], requires_grad: bool) -> Tensor:
    """A stand-in for a tensor of the client: it refuses a ``.grad``, which would be lost."""
    tensor = Tensor(array, requires_grad=requires_grad)
    tensor._belongs_to_client = True  # type: ignore[attr-defined]
    return tensor


# ---------------------------------------------------------------------- running backward


def run_function_backward(
    function: type[Any], ctx: FunctionContext, grads: list[Any], needs: Sequence[bool]
) -> list[np.ndarray[Any, Any] | None]:
    """Run ``function.backward`` on arrays, with recording off.

    Args:
        function: the user's Function class.
        ctx: its ctx, the client's own or a rebuilt one.
        grads: for each output of forward the gradient (an array) or None; backward may change
            the list.
        needs: for each argument of forward, whether its gradient is needed.

    Returns:
        For each argument of forward the gradient that backward returned, or None, in memory that
        user code cannot write any more. The engine checks its shape and dtype.

    Raises:
        RuntimeError: backward returned the wrong number or kind of gradients.
    """
    lent, loans = lend(grads)
    recorded, GRAD_MODE.enabled = GRAD_MODE.enabled, False
    try:
        arrays = _checked_gradients(function, ctx, lent, needs)
    finally:
        GRAD_MODE.enabled = recorded
    for nr, value in enumerate(arrays):
        if isinstance(value, Tensor):
            arrays[nr] = value._array
    value = None
    if loans or not are_fresh(arrays):
        count = len(arrays)
        arrays += [None if grad is None else grad._array for grad in lent]
        lent.clear()
        own(arrays, count, take_back(loans))
        del arrays[count:]
    return arrays


def _checked_gradients(
    function: type[Any],
    ctx: FunctionContext,
    grads: list[Tensor | None],
    needs: Sequence[bool],
) -> list[Any]:
    """Call backward; return a Tensor, an array or None for each argument of forward.

    ``grads`` gets the zeros that stand for undefined gradients.
    """
    if ctx._materialize_grads:
        for nr, grad in enumerate(grads):
            if grad is None and (meta := ctx._outputs[nr]) is not None:
                grads[nr] = Tensor(zeros(*meta))
    frames = running_backwards()
    frames.append((ctx, needs if type(needs) is tuple else tuple(needs)))
    try:
        returned = function._backward_rule()(ctx, *grads)
    finally:
        frames.pop()
    if not isinstance(returned, tuple):
        returned = (returned,)
    inputs = ctx._inputs
    if len(returned) != len(inputs):
        returned = _exactly(returned, inputs, function)
    values = list(returned)
    for position, value in enumerate(returned):
        if value is not None:
            meta = inputs[position]
            if meta is None or not isinstance(value, Tensor):
                values[position] = _gradient(value, meta, position, function)
            if not needs[position]:
                values[position] = None
    return values


def _exactly(
    values: tuple[Any, ...], inputs: tuple[Metadata, ...], function: type[Any]
) -> tuple[Any, ...]:
    """``values`` without the trailing Nones that PyTorch allows beyond the arguments."""
    expected = len(inputs)
    surplus = values[expected:]
    if len(values) < expected or any(value is not None for value in surplus):
        raise RuntimeError(
            f"function {_label(function)} returned an incorrect number of gradients "
            f"(expected {expected}, got {len(values)})"
        )
    return values[:expected]


def _label(function: type[Any]) -> str:
    return f"{function.__name__}Backward"


def _gradient(value: Any, meta: Metadata, position: int, function: type[Any]) -> Any:
    """``value``, which is not None, as a Tensor or an array.

    Raises:
        RuntimeError: it is none of those, or its argument is not a tensor.
    """
    if meta is None:
        raise RuntimeError(
            f"function {_label(function)} returned a gradient different than None at position "
            f"{position + 1}, but the corresponding forward input was not a Variable"
        )
    if isinstance(value, Tensor | np.ndarray):
        return value
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, bool | int | float | complex) and meta.shape == ():
        return np.asarray(value, dtype=meta.dtype)
    raise RuntimeError(
        f"function {_label(function)}: expected Variable or None (got {type(value).__name__}) at "
        f"position {position + 1}. Return a tuple with one Tensor, NumPy array or None per "
        "argument of forward."
    )
