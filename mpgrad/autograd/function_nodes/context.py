"""FunctionContext: the ``ctx`` by which a custom Function's forward passes data to its backward."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from mpgrad.base.thread_state import PerThread
from mpgrad.recording.graph.node import FREED_MESSAGE, InputMetadata
from mpgrad.recording.tensors.saved_tensor import SavedTensor
from mpgrad.recording.tensors.tensor import Tensor

if TYPE_CHECKING:
    from mpgrad.autograd.function_nodes.function_node import FunctionNode
    from mpgrad.recording.graph.hooks import RemovableHandle
    from mpgrad.recording.graph.node import Node

#: The metadata of a forward argument or output; None if it is not a tensor.
Metadata: TypeAlias = InputMetadata | None


class _Running(PerThread):
    """The ctx whose backward runs on this thread, and the gradients that its GraphTask needs."""

    def __init__(self) -> None:
        self.frames: list[tuple[FunctionContext, tuple[bool, ...]]] = []


_running = _Running()


def running_backwards() -> list[tuple[FunctionContext, tuple[bool, ...]]]:
    """The ctx of each backward that this thread runs, and its ``needs_input_grad``; innermost
    last."""
    return _running.frames


class FunctionContext:
    """The ``ctx`` of a custom Function: the data that forward leaves for backward.

    Any other attribute may be set on it. mpgrad's own state is in slots, so that ``vars(ctx)`` is
    exactly what the user has set.
    """

    if TYPE_CHECKING:  # forward may set what it likes

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    __slots__ = (
        "__dict__",
        "_clears_on_access",
        "_dirty",
        "_inputs",
        "_materialize_grads",
        "_materialize_non_diff_grads",
        "_metadata",
        "_needs_input_grad",
        "_node",
        "_non_differentiable",
        "_outputs",
        "_saved",
        "_to_save",
        "_was_accessed",
    )

    def __init__(
        self, needs_input_grad: tuple[bool, ...], *, clears_on_access: bool = False
    ) -> None:
        self._needs_input_grad = needs_input_grad
        self._clears_on_access = clears_on_access
        self._was_accessed = False
        self._to_save: tuple[Any, ...] = ()
        self._saved: tuple[SavedTensor | Tensor | None, ...] | None = ()
        self._non_differentiable: tuple[Any, ...] = ()
        self._dirty: tuple[Any, ...] = ()
        self._materialize_grads = True
        #: Whether backward gets zeros for outputs that were marked non-differentiable, too; else
        #: None. PyTorch's users set it in forward.
        self._materialize_non_diff_grads = True
        self._inputs: tuple[Metadata, ...] = ()
        self._outputs: tuple[Metadata, ...] = ()
        self._metadata: dict[str, Any] | None = None
        #: Weak, because the Node owns the ctx.
        self._node: weakref.ref[FunctionNode] | None = None

    # ------------------------------------------------------------------ what forward declares

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Save ``tensors`` for backward, which gets them as ``ctx.saved_tensors``.

        A second call replaces the first. Set other values as attributes of ctx: if the operation is
        recorded, ``apply`` raises TypeError for such a value here.
        """
        self._to_save = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Declare that forward changed these inputs in place; it must return them, too.

        ``apply`` then makes this operation their history and counts the change, so that Nodes that
        have saved the old values notice it. It raises RuntimeError if one of them is a leaf that
        requires grad, is not returned, or is not a tensor.
        """
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Declare that these outputs of forward have no gradient; backward gets zeros for them."""
        self._non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether undefined gradients reach backward as zeros (the default) or as None.

        Raises:
            TypeError: ``value`` is not a bool.
        """
        if not isinstance(value, bool):
            raise TypeError(
                f"set_materialize_grads expected a bool, but got a {type(value).__name__}"
            )
        self._materialize_grads = value

    # ------------------------------------------------------------------ what backward asks

    @property
    def saved_tensors(self) -> tuple[Tensor | Any, ...]:
        """The tensors of ``save_for_backward``, and None where it was given None.

        Raises:
            RuntimeError: backward has released them, one was changed in place since, or the class
                has ``clear_saved_tensors_on_access`` and this is the second access.
        """
        if self._was_accessed:
            raise RuntimeError(
                "saved_tensors can only be accessed once when clear_saved_tensors_on_access=True "
                "is set on the autograd.Function. Keep what the first access returned in a "
                "variable, or set clear_saved_tensors_on_access to False."
            )
        if self._saved is None:
            raise RuntimeError(FREED_MESSAGE)
        found: list[Tensor | None] = []
        for item in self._saved:
            if isinstance(item, SavedTensor):
                # A saved output comes back with its Node as history; an input needs none.
                tensor = item.unchanged_input()
                found.append(item.tensor(self._owner_of(item)) if tensor is None else tensor)
            else:
                found.append(item)
        tensors = tuple(found)
        if self._clears_on_access:
            self._saved, self._was_accessed = (), True
        return tensors

    @property
    def saved_variables(self) -> tuple[Tensor | None, ...]:
        """The old name of ``saved_tensors``."""
        warnings.warn(
            "'saved_variables' is deprecated; use 'saved_tensors'", DeprecationWarning, stacklevel=2
        )
        return self.saved_tensors

    def _owner_of(self, item: SavedTensor) -> FunctionNode | None:
        return self._live_node() if item.holds_input else self._owner()

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """For each argument of forward, whether its gradient is needed.

        Inside backward: needed by this backward pass (``inputs=`` may leave some out).
        """
        for ctx, needs in reversed(_running.frames):
            if ctx is self:
                return needs
        return self._needs_input_grad

    # ------------------------------------------------------------------ its Node

    def _live_node(self) -> FunctionNode | None:
        return self._node() if self._node is not None else None

    def _owner(self) -> FunctionNode:
        node = self._live_node()
        if node is None:
            raise RuntimeError(
                "this ctx has no graph, or its graph was destroyed: use ctx only inside forward, "
                "setup_context and backward, and while an output is alive"
            )
        return node

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """As ``grad_fn.next_functions``; empty if nothing is recorded."""
        node = self._live_node()
        return () if node is None else node.next_functions

    @property
    def metadata(self) -> dict[str, Any]:
        """The same dictionary as ``grad_fn.metadata``."""
        if self._metadata is None:
            self._metadata = {}
        return self._metadata

    def name(self) -> str:
        """As ``grad_fn.name()``."""
        return self._owner().name()

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """As ``grad_fn.register_hook``."""
        return self._owner().register_hook(hook)

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """As ``grad_fn.register_prehook``."""
        return self._owner().register_prehook(hook)
