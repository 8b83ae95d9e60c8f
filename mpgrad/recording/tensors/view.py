"""View: how a tensor that lies in another's memory was made, and how its history is updated.

An in-place change of the base, or of another view of it, makes the history of a view stale. The
shared version counter shows it, and the next use replays the steps from the base, recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import address
from mpgrad.recording.graph.grad_modes import (
    enable_grad,
    is_grad_enabled,
    is_inference_mode_enabled,
)
from mpgrad.recording.tensors.copy_on_write_versions import CopyOnWriteVersions
from mpgrad.recording.tensors.refused_reads import refuse_of_client
from mpgrad.recording.tensors.storage import INFERENCE

if TYPE_CHECKING:
    from mpgrad.recording.graph.node import Node
    from mpgrad.recording.graph.registry import Operator
    from mpgrad.recording.tensors.tensor import Tensor

#: How a view was made, if that forbids recorded in-place changes (PyTorch's CreationMeta).
NO_GRAD, INFERENCE_MODE = "no_grad", "inference_mode"
SEVERAL_OUTPUTS, FUNCTION = "several outputs", "custom Function"

_BLOCK = (
    "Given that this use case is ambiguous and error-prone, it is forbidden. Move both the view "
    "and the inplace either inside the {} block (the inplace is not tracked) or outside of it (it "
    "is)."
)

_WHY = {
    NO_GRAD: _BLOCK.format(NO_GRAD),
    INFERENCE_MODE: _BLOCK.format(INFERENCE_MODE),
    SEVERAL_OUTPUTS: (
        "This view is the output of a function that returns multiple views. Such functions do not "
        "allow the output views to be modified inplace. Use the out-of-place operation instead."
    ),
    FUNCTION: (
        "This view was created inside a custom Function (or because an input was returned as-is), "
        "and the in-place change would override its custom backward. This behavior is forbidden. "
        "Clone the output of the custom Function first."
    ),
}


#: The function that calls and records an operator, and the array namespace of an array.
#: ``dispatch`` installs them: every View that can be replayed was made by it.
_call: Callable[..., Any]
_namespace_for: Callable[[Any], Any]


def install(call: Callable[..., Any], namespace_for: Callable[[Any], Any]) -> None:
    """Install the functions that replay views."""
    global _call, _namespace_for
    _call, _namespace_for = call, namespace_for


class View:
    """One tensor's place in the memory of ``base``.

    Attributes:
        base: the root: never a view itself.
        parent: the View that it was made from; None for a view of the base.
        operator: the operator that made it; None if it cannot be replayed.
        attributes: of the operator.
        creation: None, or the reason why it may not be changed in place under recording.
        version: the version of the memory when the tensor's history was last correct.
    """

    __slots__ = ("attributes", "base", "creation", "operator", "parent", "version")

    def __init__(
        self,
        base: Tensor,
        parent: View | None,
        operator: Operator | None,
        attributes: dict[str, Any],
        creation: str | None,
    ) -> None:
        self.base, self.parent, self.creation = base, parent, creation
        self.operator, self.attributes = operator, attributes
        self.version = base._version_counter.value

    def chain(self) -> list[View]:
        """All views from the base to this one."""
        views, view = [self], self.parent
        while view is not None:
            views.append(view)
            view = view.parent
        return views[::-1]

    def steps(self) -> tuple[tuple[Any, ...], ...]:
        """The steps from the base, in the form that ``arrays.cpu.cpu_views`` executes."""
        return tuple(
            (operator.view, *attributes.values()) for operator, attributes in self._operators()
        )

    def _operators(self) -> Iterator[tuple[Operator, dict[str, Any]]]:
        if self.base._view is not None:
            raise RuntimeError(
                "the base of a view was reshaped in place (by unsqueeze_, t_ or a similar method), "
                "so the view cannot be made again. Take the view afterwards, or use unsqueeze() "
                "or t()."
            )
        for view in self.chain():
            if view.operator is None:
                raise RuntimeError(
                    "a view that a custom Function returned cannot be made again: clone() it, or "
                    "let the Function return no view"
                )
            yield view.operator, view.attributes

    def array_in(self, base: Any) -> Any:
        """The array of this view, if ``base`` were the array of its base."""
        return _namespace_for(base).take_view(base, self.steps())

    def refresh(self, tensor: Tensor) -> None:
        """Update the history of ``tensor``, whose view this is.

        Raises:
            RuntimeError: the memory was changed, and this view cannot be updated.
        """
        version = tensor._version_counter.value
        if self.version == version or not (tensor._grad_fn or self.base._requires_grad):
            return
        self.check(tensor, "its base or another view of its base has been")
        replayed = self.replay(tensor)
        if replayed._grad_fn is not None:
            set_history(tensor, replayed._grad_fn, replayed._output_nr)
        self.version = version

    def replay(self, tensor: Tensor) -> Tensor:
        """Make ``tensor``, whose view this is, from its base again, recorded.

        Raises:
            RuntimeError: the shape of the base was changed in place.
        """
        self.check_base(tensor)
        base = self.base
        with enable_grad():
            for operator, attributes in self._operators():
                base = _call(operator, base, **attributes)
        return base

    def check_base(self, tensor: Tensor) -> None:
        """Check that the steps from the base still lead to ``tensor``, whose view this is.

        Raises:
            RuntimeError: the shape of the base was changed in place.
        """
        base = self.base
        if not getattr(base, "_was_reshaped", False):
            return
        try:
            found = self.array_in(base._array)
        except (IndexError, ValueError):
            found = None
        if found is None or _place(found) != _place(tensor._array):
            raise RuntimeError(
                "a view cannot follow an in-place change any more: the shape of its base was "
                "changed in place (transpose_, squeeze_, resize_, set_ ...) after the view was "
                "made. Make the view again, or change the shape out of place."
            )

    def check(self, tensor: Tensor, changed: str) -> None:
        """Raise if an in-place change cannot be recorded for ``tensor``.

        Args:
            tensor: the tensor whose view this is.
            changed: "is being", or the other tensor that was changed.

        Raises:
            RuntimeError: the view was made in a way that forbids it.
        """
        if self.creation is None:
            return
        node = tensor._grad_fn
        who = f"Output {tensor._output_nr} of {node.name()} is a view" if node else "A view"
        if self.creation is INFERENCE_MODE:
            where = f"created in inference mode and {changed} modified inplace in normal mode"
        else:
            where = f"created in no_grad mode and {changed} modified inplace with grad mode enabled"
        if node is None:
            text = f"{who} was {where}."
        elif self.creation in (NO_GRAD, INFERENCE_MODE):
            text = f"{who} of a view which was {where}."
        else:
            text = f"{who} and {changed} modified inplace."
        raise RuntimeError(f"{text} {_WHY[self.creation]}")


def _place(array: Any) -> tuple[Any, ...]:
    return address(array), array.shape, array.strides


def storage_offset(tensor: Tensor) -> int:
    """The place of the first element of ``tensor`` in the memory that it is a view of.

    Raises:
        RuntimeError: it is a tensor of the calling process, in a worker.
    """
    refuse_of_client(tensor, "storage_offset()")
    if tensor._view is None:
        return 0
    return (address(tensor._array) - address(tensor._view.base._array)) // tensor._array.itemsize


def share_memory(
    operator: Operator, source: Tensor, outputs: Sequence[Tensor], attributes: dict[str, Any]
) -> None:
    """Make the ``outputs`` that lie in the memory of ``source`` its views."""
    counter, parent = source._version_counter, source._view
    base = source if parent is None else parent.base
    creation = None if parent is None else parent.creation
    if not is_grad_enabled():
        creation = INFERENCE_MODE if is_inference_mode_enabled() else NO_GRAD
    elif operator.outputs is None:
        creation = SEVERAL_OUTPUTS
    for tensor in outputs:
        array = tensor._array
        if array.base is None:
            continue
        if not array.size or np.may_share_memory(array, source._array):
            tensor._version_counter = counter
            if counter is not INFERENCE:  # without versions and history there is nothing to update
                tensor._view = View(base, parent, operator, attributes, creation)
            if type(counter) is CopyOnWriteVersions:
                counter.add(tensor)


def view_without_steps(source: Tensor) -> View:
    """A View for a tensor in the memory of ``source`` that a custom Function returns."""
    parent = source._view
    return View(source if parent is None else parent.base, parent, None, {}, FUNCTION)


def set_history(tensor: Tensor, node: Node, output_nr: int) -> None:
    """Make ``tensor`` an output of ``node``; ``retain_grad()`` moves with it, hooks stay behind."""
    old = tensor._grad_fn
    if tensor._retains_grad and old is not None and old.hooks is not None:
        old.hooks.retained.pop(tensor._output_nr, None)
        node.retain_grad_for(output_nr, tensor)
    tensor._grad_fn, tensor._output_nr, tensor._requires_grad = node, output_nr, True
