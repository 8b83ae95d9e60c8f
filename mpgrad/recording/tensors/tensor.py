"""Tensor: an array, its place in the backward graph, and its ``.grad``.

It has only state and the properties over it; ``tensor_methods``, which knows the operators,
attaches arithmetic and the other methods.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import device_of, is_array
from mpgrad.base.device import CPU, Device
from mpgrad.base.dtype import DTYPES, DType
from mpgrad.base.size import Size, size_of
from mpgrad.recording.graph.grad_modes import INFERENCE_MODES, is_inference_mode_enabled
from mpgrad.recording.graph.hooks import Hooks, RemovableHandle
from mpgrad.recording.graph.node import Edge, InputMetadata, Node
from mpgrad.recording.tensors.accumulate_grad import AccumulateGrad
from mpgrad.recording.tensors.assigned_grad import (
    OWN_DTYPE,
    check_assigned_grad,
    checked_grad_dtype,
    wanted_dtype,
)
from mpgrad.recording.tensors.refused_reads import refuse_of_client
from mpgrad.recording.tensors.storage import INFERENCE, VersionCounter, is_noted, not_an_array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpgrad.recording.tensors.tensor_members import TensorMembers
    from mpgrad.recording.tensors.view import View

    Array = np.ndarray[Any, Any]
else:
    TensorMembers = object


#: The number of gradient metadata that are cached.
METADATA_MAX = 4096


class Tensor(TensorMembers):
    """An n-dimensional array that can record how it was computed.

    ``mg.tensor``, ``mg.zeros`` and so on make it, and so do operations on Tensors; the constructor
    wraps an array without a copy.
    """

    #: The public module: pickled tensors do not depend on the place of this file.
    __module__ = "mpgrad"

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_accumulator",
        "_array",
        "_grad",
        "_grad_dtype",
        "_grad_fn",
        "_leaf_hooks",
        "_output_nr",
        "_post_accumulate_hooks",
        "_requires_grad",
        "_retains_grad",
        "_version_counter",
        "_view",
        "_was_reshaped",
    )

    #: Set when the shape was changed in place, so that earlier views cannot be updated.
    _was_reshaped: bool

    #: Makes NumPy leave ``array * tensor`` to Tensor.
    __array_priority__ = 1000

    def __init__(
        self,
        array: Array,
        *,
        requires_grad: bool = False,
        grad_fn: Node | None = None,
        output_nr: int = 0,
        version_counter: VersionCounter | None = None,
    ) -> None:
        if type(array) is not np.ndarray and not is_array(array):
            raise not_an_array(array)
        self._array = array
        self._grad: Tensor | None = None
        self._grad_fn = grad_fn
        self._output_nr = output_nr
        self._requires_grad = requires_grad and is_noted(self)
        self._retains_grad = False
        self._grad_dtype: Any = OWN_DTYPE
        if version_counter is None:
            is_inference = INFERENCE_MODES.entered and is_inference_mode_enabled()
            version_counter = INFERENCE if is_inference else VersionCounter()
        self._version_counter = version_counter
        #: Set if the array lies in the memory of another tensor.
        self._view: View | None = None
        #: The leaf's AccumulateGrad: the Edge to it while the leaf owns it, which is no view; a
        #: weak reference if the AccumulateGrad owns the leaf; None: not made yet.
        self._accumulator: Any = None
        #: Hooks on a leaf's gradient; they outlive its AccumulateGrad.
        self._leaf_hooks: Hooks | None = None
        self._post_accumulate_hooks: Hooks | None = None

    # ------------------------------------------------------------------ what it is

    @property
    def shape(self) -> Size:
        """The length of each dimension."""
        return size_of(self._array.shape)

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return DTYPES[self._array.dtype]

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._array.ndim

    @property
    def device(self) -> Device:
        """Where it lies."""
        return device_of(self._array)

    @property
    def _version(self) -> int:
        if self._version_counter is INFERENCE:
            raise RuntimeError("Inference tensors do not track version counter.")
        return self._version_counter.value

    def is_inference(self) -> bool:
        """Whether the tensor was made in inference mode, and so can never be recorded."""
        return self._version_counter is INFERENCE

    def _is_view(self) -> bool:
        """Whether the elements lie in the memory of another tensor."""
        refuse_of_client(self, "_is_view()")
        return self._view is not None

    @property
    def _base(self) -> Tensor | None:
        """The tensor whose memory this view lies in (never itself a view), or None."""
        refuse_of_client(self, "_base")
        return None if self._view is None else self._view.base

    # ------------------------------------------------------------------ its place in the graph

    @property
    def grad_fn(self) -> Node | None:
        """The Node that computes this tensor's gradient; None for a leaf.

        Raises:
            RuntimeError: the tensor is a view whose memory was changed, and it cannot be updated.
        """
        if self._view is not None:
            self._view.refresh(self)
        return self._grad_fn

    @property
    def output_nr(self) -> int:
        """The number of this tensor among the outputs of the recorded operation."""
        return self._output_nr

    @property
    def is_leaf(self) -> bool:
        """True if no recorded operation made it."""
        return self.grad_fn is None

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are computed for it."""
        # A view requires grad as soon as its base does.
        return self._requires_grad or (self._view is not None and self._view.base._requires_grad)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        check_requires_grad(self, value)
        if not self.is_leaf:
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables."
                + ("" if value else _USE_DETACH)
            )
        self._requires_grad = value and is_noted(self)

    @requires_grad.deleter
    def requires_grad(self) -> None:
        raise RuntimeError("Deletion of requires_grad not allowed: requires_grad must be a bool")

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set ``requires_grad`` in place and return self.

        Raises:
            TypeError: ``requires_grad`` is not a bool.
            RuntimeError: it is False for a computed tensor, or True for one that cannot have a
                gradient.
        """
        if not isinstance(requires_grad, bool):
            raise TypeError(
                "requires_grad_(): argument 'requires_grad' must be bool, not "
                f"{type(requires_grad).__name__}"
            )
        if not (requires_grad and self.requires_grad):
            self.requires_grad = requires_grad
        return self

    # ------------------------------------------------------------------ .grad

    @property
    def grad(self) -> Tensor | None:
        """The accumulated gradient of a leaf (or of a tensor after ``retain_grad()``)."""
        if self._grad is None and not self._retains_grad and not self.is_leaf:
            warnings.warn(
                "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its "
                ".grad attribute won't be populated during autograd.backward(). Use "
                ".retain_grad() on the non-leaf Tensor if you want it.",
                UserWarning,
                stacklevel=2,
            )
        if self._grad is None:
            refuse_of_client(self, ".grad")
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            check_assigned_grad(self, value, Tensor)
        self._grad = value

    @grad.deleter
    def grad(self) -> None:
        self._grad = None

    def _begin_grad(self, array: Array) -> None:
        """``array`` becomes the leaf's first ``.grad``."""
        self._grad = Tensor(array)

    @property
    def grad_dtype(self) -> np.dtype[Any] | None:
        """The dtype that this leaf's ``.grad`` must have; its own unless set.

        Gradients are converted to it before they reach hooks and ``.grad``. With None, gradients
        of any dtype may be assigned; computed gradients keep the leaf's own dtype.

        Raises:
            RuntimeError: the tensor is no leaf; when set, also: its ``.grad`` has another dtype,
                or gradients cannot have this one.
        """
        if not self.is_leaf:
            raise RuntimeError("grad_dtype can only be accessed on leaf tensors.")
        return wanted_dtype(self)

    @grad_dtype.setter
    def grad_dtype(self, value: Any) -> None:
        if not self.is_leaf:
            raise RuntimeError("grad_dtype can only be set on leaf tensors.")
        self._grad_dtype = checked_grad_dtype(value, self._grad)
        accumulator = accumulator_of(self)
        if accumulator is not None:  # also for graphs that were recorded before
            accumulator.input_metadata = (gradient_metadata(self),)

    @property
    def retains_grad(self) -> bool:
        """True if ``retain_grad()`` was called on a non-leaf."""
        return self._retains_grad

    def retain_grad(self) -> None:
        """Keep ``.grad`` of this non-leaf, too; does nothing for a leaf.

        Raises:
            RuntimeError: the tensor does not require grad.
        """
        if not self.requires_grad:
            raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
        node = self.grad_fn
        if node is not None:
            self._retains_grad = True
            node.retain_grad_for(self._output_nr, self)

    # ------------------------------------------------------------------ hooks

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
        """Call ``hook(grad)`` when this tensor's gradient is complete; its result may replace it.

        Raises:
            RuntimeError: the tensor does not require grad.
        """
        if not self.requires_grad:
            raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        node, input_nr = gradient_edge(self)
        if self._grad_fn is None and self._leaf_hooks is None:
            self._leaf_hooks = node.hooks_for(0)
        return node.hooks_for(input_nr).add(hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        """Call ``hook(tensor)`` right after this leaf's ``.grad`` was updated.

        Raises:
            RuntimeError: the tensor is no leaf or does not require grad.
        """
        if not self.requires_grad:
            raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        if not self.is_leaf:
            raise RuntimeError(
                "post accumulate grad hooks cannot be registered on non-leaf tensors"
            )
        if self._post_accumulate_hooks is None:
            self._post_accumulate_hooks = Hooks()
        return self._post_accumulate_hooks.add(hook)


_USE_DETACH = (
    " If you want to use a computed variable in a subgraph that doesn't require differentiation "
    "use var_no_grad = var.detach()."
)


def is_inference(input: Tensor) -> bool:
    """Whether ``input`` was made in inference mode, and so can never be recorded."""
    return input.is_inference()


def check_requires_grad(tensor: Tensor, value: Any) -> None:
    """Raise if ``value`` cannot be the ``requires_grad`` of ``tensor``.

    Raises:
        RuntimeError: it is not a bool, or True for a tensor that cannot have a gradient.
    """
    if not isinstance(value, bool):
        raise RuntimeError("requires_grad must be a bool")
    if not value:
        return
    if tensor._array.dtype.kind not in "fc":
        raise RuntimeError(
            "only Tensors of floating point and complex dtype can require gradients, not "
            f"{tensor._array.dtype}"
        )
    if tensor._version_counter is INFERENCE and not is_inference_mode_enabled():
        raise RuntimeError(
            "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed."
        )


def metadata_of(tensor: Tensor) -> InputMetadata:
    """The form that a gradient of ``tensor`` must have."""
    array = tensor._array
    if type(array) is np.ndarray:
        return _metadata_alone(array.shape, array.dtype)[0]
    return InputMetadata(array.shape, array.dtype, device_of(array))


@functools.lru_cache(METADATA_MAX)
def _metadata_alone(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[InputMetadata]:
    """A cache: each operand needs one, and a lookup takes a fifth of the time of a new one."""
    return (InputMetadata(shape, dtype, CPU),)


def gradient_metadata(tensor: Tensor) -> InputMetadata:
    """As :func:`metadata_of`, for a tensor that may be a leaf with a ``grad_dtype``."""
    metadata = metadata_of(tensor)
    if tensor._grad_dtype is OWN_DTYPE or tensor._grad_dtype is None:
        return metadata
    return metadata._replace(dtype=tensor._grad_dtype)


def _inputs_of(leaf: Tensor) -> tuple[InputMetadata]:
    """The ``input_metadata`` of its AccumulateGrad; leaves that are alike share it."""
    if type(leaf._array) is np.ndarray and leaf._grad_dtype is OWN_DTYPE:
        return _metadata_alone(leaf._array.shape, leaf._array.dtype)
    return (gradient_metadata(leaf),)


def gradient_edge(tensor: Tensor) -> Edge:
    """The target of the gradient of ``tensor``: its grad_fn, or a leaf's AccumulateGrad."""
    edge, leaf = recorded_edge(tensor)
    if leaf is not None:
        edge[0].hold_leaf()
    return edge


def recorded_edge(tensor: Tensor) -> tuple[Edge, Tensor | None]:
    """As :func:`gradient_edge`, for a Node that also keeps the second result: the leaf, if its
    AccumulateGrad does not hold it."""
    if tensor._view is not None:
        tensor._view.refresh(tensor)
    node = tensor._grad_fn
    if node is not None:
        return (node, tensor._output_nr), None
    known = tensor._accumulator
    if known.__class__ is tuple:
        return known, tensor
    if known is not None:
        accumulator = known()
        known = None if accumulator is None else (accumulator, 0)
    edge: Any = known or _new_accumulator(tensor)
    return edge, None if edge[0].holds_leaf else tensor


def recorded_edges(
    values: Sequence[Any], needs: Sequence[bool]
) -> tuple[list[Edge | None], list[Tensor | None]]:
    """The results of :func:`recorded_edge` for those values whose gradient is needed."""
    edges: list[Edge | None] = []
    leaves: list[Tensor | None] = []
    for value, needed in zip(values, needs, strict=True):
        edge, leaf = recorded_edge(value) if needed else (None, None)
        edges.append(edge)
        leaves.append(leaf)
    return edges, leaves


#: Held so that two threads that use a leaf for the first time get the same AccumulateGrad.
_accumulator_lock = threading.RLock()  # handlers of signals use leaves, too


def _new_accumulator(leaf: Tensor) -> Edge:
    with _accumulator_lock:
        made = AccumulateGrad(leaf, _inputs_of(leaf))
        accumulator = accumulator_of(leaf)
        if accumulator is None:
            accumulator = made
            leaf._accumulator = accumulator, 0
            if leaf._view is not None:
                accumulator.hold_leaf()
        return accumulator, 0


def accumulator_of(leaf: Tensor) -> AccumulateGrad | None:
    """The AccumulateGrad that it has now."""
    known = leaf._accumulator
    return known[0] if isinstance(known, tuple) else known and known()


def _forget_lock_in_child() -> None:
    # Another thread may have held it at the fork.
    global _accumulator_lock
    _accumulator_lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_lock_in_child)
