"""outputs_of(): turns the results of a custom Function's forward into recorded tensors."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.autograd.function_nodes.context import FunctionContext
from mpgrad.autograd.function_nodes.function_node import FunctionNode
from mpgrad.base.user_frames import level_of_caller
from mpgrad.recording.dispatch.in_place import check_recordable, rebase
from mpgrad.recording.graph.node import Node
from mpgrad.recording.tensors.tensor import Tensor, metadata_of
from mpgrad.recording.tensors.view import FUNCTION, SEVERAL_OUTPUTS, view_without_steps


def outputs_of(
    produced: Sequence[Any],
    args: Sequence[Any],
    ctx: FunctionContext,
    node: FunctionNode | None,
    *,
    has_setup_context: bool,
) -> list[Any]:
    """The outputs as ``apply`` returns them.

    Args:
        produced: the results of forward.
        args: its arguments.
        ctx: its declarations.
        node: the Node to record, or None.
        has_setup_context: whether a separate setup_context filled ctx.

    Raises:
        RuntimeError: the declarations of ctx do not fit the call of forward.
        TypeError: a value to be saved is not a Tensor.
    """
    if not (ctx._dirty or ctx._non_differentiable) and _are_new(produced, args):
        return _recorded(produced, ctx, node)
    maker = _Outputs(args, ctx, recording=node is not None)
    maker.check_dirty(produced)
    outputs = [maker.output(value) for value in produced]
    if node is not None:
        _warn_of_lost_numbers(outputs, node)
    differentiable = maker.differentiable(outputs)
    maker.restrict_views(outputs, several=sum(differentiable) > 1)
    if node is None:
        return outputs
    _check_saved(ctx)
    if has_setup_context:
        _refuse_returned(ctx, maker, produced)
    ctx._outputs = tuple([metadata_of(v) if isinstance(v, Tensor) else None for v in outputs])
    before = maker.histories()
    node.finish(outputs, differentiable)
    for tensor, old_node, old_nr in before:
        _rebase(tensor, node, old_node, old_nr)
    return outputs


def _warn_of_lost_numbers(outputs: Sequence[Any], node: FunctionNode) -> None:
    numbers = [value for value in outputs if isinstance(value, float | complex)]
    if numbers and not any(isinstance(value, Tensor) for value in outputs):
        warnings.warn(
            f"the forward of {node.function.__name__} has returned {numbers[0]!r}, a number of "
            "Python, which has no gradient: return a Tensor, or a number of NumPy",
            UserWarning,
            stacklevel=level_of_caller(),
        )


def _are_new(produced: Sequence[Any], args: Sequence[Any]) -> bool:
    """Whether they are Tensors that forward has made, without history and other names."""
    for value in produced:
        if not isinstance(value, Tensor) or value._requires_grad or value._view is not None:
            return False
        for given in args:
            if value is given:
                return False
    return True


def _recorded(
    produced: Sequence[Tensor], ctx: FunctionContext, node: FunctionNode | None
) -> list[Tensor]:
    """New tensors as outputs, each as it is."""
    if node is not None:
        _check_saved(ctx)
        metadata = [metadata_of(value) for value in produced]
        ctx._outputs = tuple(metadata)
        node.finish(produced, [meta[1].kind in "fc" for meta in metadata])
    return list(produced)


def _rebase(tensor: Tensor, node: FunctionNode, old_node: Node | None, old_nr: int) -> None:
    """Put ``node`` on top of the old history of an input that was changed in place."""
    if tensor._grad_fn is node:
        new = Tensor(tensor._array, requires_grad=True, grad_fn=node, output_nr=tensor._output_nr)
        tensor._grad_fn, tensor._output_nr = old_node, old_nr
        rebase(tensor, new)


_ARRAYS = (np.ndarray, np.generic)


class _Outputs:
    """Makes the outputs of one call."""

    def __init__(self, args: Sequence[Any], ctx: FunctionContext, *, recording: bool) -> None:
        self._inputs = [value for value in args if isinstance(value, Tensor)]
        self._dirty = ctx._dirty
        self._excluded = ctx._non_differentiable
        self._recording = recording
        #: By id: the output for each returned Tensor that is no input, so that it is made once.
        self._made: dict[int, Tensor] = {}
        #: Ids of the outputs that are declared non-differentiable.
        self._constant: set[int] = set()
        if self._dirty or self._excluded:
            _check_tensors("mark_dirty", self._dirty)
            _check_tensors("mark_non_differentiable", self._excluded)

    def check_dirty(self, produced: Sequence[Any]) -> None:
        """Check the inputs that were changed in place, and count the changes."""
        if not self._dirty:
            return
        for tensor in self._dirty:
            if not _contains(produced, tensor):
                raise RuntimeError(
                    "Some elements marked as dirty during the forward method were not returned as "
                    "output. The inputs that are modified inplace must all be outputs of the "
                    "Function."
                )
            if not self.is_input(tensor):
                warnings.warn(
                    "ctx.mark_dirty() received a tensor that was not an input. Only input Tensors "
                    "that have been mutated should be passed to ctx.mark_dirty().",
                    UserWarning,
                    stacklevel=4,
                )
            elif self._recording:
                self._check_recordable(tensor, len(produced))
        for tensor in self._dirty:
            tensor._version_counter.count()

    def _check_recordable(self, tensor: Tensor, outputs: int) -> None:
        if tensor._view is not None:
            if outputs > 1:
                raise RuntimeError(
                    "If your Function modifies inplace an input that is a view of another Tensor, "
                    "your Function cannot return more than one Tensor. clone() the input first, or "
                    "let one Function make the change and another return the rest."
                )
            check_recordable(tensor)
        elif tensor._requires_grad and tensor._grad_fn is None:
            raise RuntimeError(
                "a leaf Variable that requires grad has been used in an in-place operation."
            )

    def histories(self) -> list[tuple[Tensor, Node | None, int]]:
        """The earlier history of each input that was changed in place."""
        return [(t, t._grad_fn, t._output_nr) for t in self._dirty if self.is_input(t)]

    def restrict_views(self, outputs: Sequence[Any], *, several: bool) -> None:
        """Forbid recorded in-place changes of views: they would override the user's backward."""
        for value in outputs:
            if isinstance(value, Tensor) and value._view is not None and not self._is_dirty(value):
                value._view.creation = SEVERAL_OUTPUTS if several else FUNCTION

    def _is_dirty(self, value: Any) -> bool:
        return _contains(self._dirty, value) and self.is_input(value)

    def is_input(self, value: Any) -> bool:
        return _contains(self._inputs, value)

    def output(self, value: Any) -> Any:
        """``value`` as a tensor that may enter the graph; other objects than arrays unchanged."""
        if not isinstance(value, Tensor):
            if isinstance(value, _ARRAYS) and value.dtype.kind in "biufc":
                return self._of_array(np.asarray(value))
            return value
        if id(value) in self._made:
            return self._made[id(value)]
        made = self._of_tensor(value)
        if not self.is_input(value) or made is value:
            self._made[id(value)] = made
        return made

    def _of_array(self, array: np.ndarray[Any, Any]) -> Tensor:
        made = Tensor(array)
        for source in self._inputs:
            if _may_share_memory(source._array, array):
                made._version_counter = source._version_counter
                made._view = view_without_steps(source)
                break
        return made

    def _of_tensor(self, value: Tensor) -> Tensor:
        excluded = _contains(self._excluded, value)
        is_dirty = _contains(self._dirty, value)
        if is_dirty and not excluded and (self._recording or not value.requires_grad):
            return value
        if not self._recording and value._view is not None and not self.is_input(value):
            return value  # it stays a view of its base, and follows its changes
        # Recording must not change the history of a tensor that another object holds.
        taken = value.requires_grad or self.is_input(value)
        made = value
        if taken:
            made = Tensor(value._array, version_counter=value._version_counter)
            is_view = value._view is not None or self.is_input(value)
            if is_view and self._recording and not excluded:
                made._view = view_without_steps(value)
        if excluded:
            self._constant.add(id(made))
        return made

    def differentiable(self, outputs: Sequence[Any]) -> list[bool]:
        """For each output, whether the Node becomes its history."""
        return [
            isinstance(value, Tensor)
            and value._array.dtype.kind in "fc"
            and id(value) not in self._constant
            for value in outputs
        ]


def _may_share_memory(one: Any, array: np.ndarray[Any, Any]) -> bool:
    if not isinstance(one, np.ndarray):
        return False
    # Nearly always each of both owns its memory.
    are_apart = one is not array and one.base is None and array.base is None
    return not are_apart and np.may_share_memory(one, array)


def _contains(values: Sequence[Any], wanted: Any) -> bool:
    return bool(values) and any(value is wanted for value in values)


def _check_tensors(method: str, declared: Sequence[Any]) -> None:
    for position, value in enumerate(declared):
        if not isinstance(value, Tensor):
            raise RuntimeError(
                f"{method} can only accept variable arguments, but argument {position} is of type "
                f"{type(value).__name__}"
            )


def _check_saved(ctx: FunctionContext) -> None:
    for position, value in enumerate(ctx._to_save):
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(
                f"save_for_backward can only save variables, but argument {position} is of type "
                f"{type(value).__name__}. Keep other values as attributes: ctx.name = value."
            )


def _refuse_returned(ctx: FunctionContext, maker: _Outputs, produced: Sequence[Any]) -> None:
    for value in ctx._to_save:
        if value is not None and maker.is_input(value) and _contains(produced, value):
            raise RuntimeError(
                "An input that has been returned as-is as output is being saved for backward. This "
                "is not supported if you override setup_context. Return and save a view of it "
                "instead, as x.view_as(x), or fill ctx inside forward."
            )
