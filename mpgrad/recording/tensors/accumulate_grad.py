"""AccumulateGrad: the sink at each leaf that adds a finished gradient to ``.grad``."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import is_writable, on_its_device
from mpgrad.base.device import CPU
from mpgrad.recording.graph.anomaly import mode as anomaly
from mpgrad.recording.graph.anomaly import origin
from mpgrad.recording.graph.grad_modes import is_inference_mode_enabled
from mpgrad.recording.graph.node import NATIVE, SEQUENCE_NR_MAX, InputMetadata, Node
from mpgrad.recording.tensors.assigned_grad import wanted_dtype
from mpgrad.recording.tensors.copy_on_write_versions import CopyOnWriteVersions
from mpgrad.recording.tensors.refused_reads import refuse
from mpgrad.recording.tensors.storage import VersionCounter, adopt, adopt_in_layout, is_dense

if TYPE_CHECKING:
    from mpgrad.recording.tensors.tensor import Tensor

_grad_lock = threading.RLock()
_has_warned_of_layout = False


def grad_lock() -> AbstractContextManager[object]:
    """Held while a thread checks leaves and adds to their ``.grad``; never while user code runs.

    One lock serves all leaves, so that the commits of two threads do not mix.
    """
    return _grad_lock


def _forget_lock_in_child() -> None:
    # Another thread may have held it at the fork.
    global _grad_lock
    _grad_lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_lock_in_child)


class AccumulateGrad(Node):
    """The leaf owns it, and Nodes with an Edge to it own the leaf (``Node.leaves``), so that it is
    made once for many steps. From the moment on that a user may see it, it owns the leaf, which
    refers to it weakly: then it lives as long as its graphs, as in PyTorch, and so do its hooks.

    Attributes:
        leaf: gives the leaf. A call of it takes half the time of the property ``variable``.
    """

    __slots__ = ("_held", "leaf")

    prefix = NATIVE

    def __init__(self, variable: Tensor, gradient: tuple[InputMetadata]) -> None:
        # Made for each leaf: it does not call Node.__init__.
        self.next_edges = ()
        self.input_metadata = gradient
        self.sequence_nr = SEQUENCE_NR_MAX
        self.hooks = None
        self._metadata = origin() if anomaly.enabled else None
        self.leaf: Callable[[], Any] = weakref.ref(variable)
        self._held: Tensor | None = None
        if variable._leaf_hooks is not None:
            self.own_hooks().tensor[0] = variable._leaf_hooks

    @property
    def variable(self) -> Tensor:
        """The leaf."""
        return self.leaf()

    @property
    def holds_leaf(self) -> bool:
        """Whether it owns the leaf."""
        return self._held is not None

    def hold_leaf(self) -> None:
        leaf = self.variable
        if self.holds_leaf or leaf is None:
            return
        self._held = leaf
        known = leaf._accumulator
        if isinstance(known, tuple) and known[0] is self:  # else the leaf has another one by now
            leaf._accumulator = weakref.ref(self)

    def accumulate(self, grad: Any, *, exclusive: bool) -> None:
        """Add ``grad`` to ``variable.grad``; an existing ``.grad`` stays the same object.

        The caller holds ``grad_lock()``.

        Args:
            grad: C-contiguous, of the variable's shape and gradient dtype.
            exclusive: nobody else holds the array, so that ``.grad`` may adopt it.
        """
        variable = self.leaf()
        if not variable._requires_grad:
            return
        existing = variable._grad
        if existing is None:
            variable._begin_grad(first_grad(grad, variable._array, exclusive=exclusive))
            return
        existing._version_counter.count()
        if type(grad) is np.ndarray:
            np.add(existing._array, grad, out=existing._array, casting="same_kind")
        else:
            with on_its_device(grad):
                np.add(existing._array, grad, out=existing._array, casting="same_kind")
        if existing._array.strides != variable._array.strides:
            _check_layout(existing._array, variable._array)

    def check(self, *, in_place: bool = True) -> None:
        """Raise if the gradient could not be added (a commit is all or none).

        Args:
            in_place: it is added to the ``.grad`` that is there; else that becomes a new one.

        Raises:
            RuntimeError: the leaf became part of a graph, or its ``.grad`` cannot be written.
        """
        variable = self.leaf()
        if getattr(variable, "_belongs_to_client", False):
            raise refuse(
                "a backward() inside a Function that runs on a worker would add to the .grad of a "
                'tensor of the calling process, which it cannot reach. Set run_on = "client" on '
                "the Function, or use mg.grad() and return the gradients."
            )
        if variable._grad_fn is not None:
            raise RuntimeError("leaf variable has been moved into the graph interior")
        grad = variable._grad
        if grad is None:
            return
        array, expected = grad._array, self.input_metadata[0]
        if (
            type(array) is np.ndarray
            and array.flags.writeable
            and array.shape == expected.shape
            and array.dtype == expected.dtype
            and expected.device is CPU
            and type(grad._version_counter) is VersionCounter
        ):
            return  # as nearly always
        if array.shape != expected.shape or (
            array.dtype != expected.dtype and wanted_dtype(variable) is not None
        ):
            raise RuntimeError(
                f"the gradient of a leaf has shape {expected.shape} and dtype {expected.dtype}, but"
                f" its .grad has shape {grad.shape} and dtype {grad.dtype}"
            )
        if grad.is_inference() and not is_inference_mode_enabled():
            raise RuntimeError(
                "Inplace update to inference tensor outside InferenceMode is not allowed: a leaf's "
                ".grad was made in inference mode. Set it to None, or to a clone."
            )
        if grad.device != expected.device:
            raise RuntimeError(
                f"the gradient of a leaf lies on {expected.device}, but its .grad on "
                f"{grad.device}: set that to None, or move it"
            )
        if type(grad._version_counter) is CopyOnWriteVersions:
            grad._version_counter.become_own()
        if in_place and not is_writable(grad._array):
            raise RuntimeError(
                "a leaf's .grad is read-only, so that nothing can be added to it: set it to None, "
                "or to its clone()"
            )


# ---------------------------------------------------------------------- the first .grad


def begins(leaf: Tensor) -> bool:
    """Whether ``leaf`` has no ``.grad`` yet, and accepts one."""
    return (
        leaf._grad is None
        and leaf._grad_fn is None
        and leaf._requires_grad
        and not getattr(leaf, "_belongs_to_client", False)
    )


def first_grad(grad: Any, leaf: Any, *, exclusive: bool) -> Any:
    """The array of a leaf's first ``.grad``: in the leaf's layout if that is dense, else C order.

    So an optimizer reads both in the same order. It is ``grad`` itself if that may be adopted.
    """
    # What is dense and has one dimension is contiguous.
    if (
        leaf.ndim > 1
        and not leaf.flags.c_contiguous
        and leaf.shape == grad.shape
        and is_dense(leaf)
    ):
        return adopt_in_layout(grad, leaf)
    whole = exclusive and grad.flags.c_contiguous and is_writable(grad)
    return grad if whole else adopt(grad)


def _check_layout(grad: Any, leaf: Any) -> None:
    """Warn, once per process, of a ``.grad`` that was assigned in another layout."""
    global _has_warned_of_layout
    if _has_warned_of_layout or grad.shape != leaf.shape:
        return
    if not is_dense(leaf) and grad.flags.c_contiguous:
        return
    if leaf.flags.c_contiguous and grad.flags.c_contiguous:
        return  # they differ in dimensions of length 1 only
    _has_warned_of_layout = True
    warnings.warn(
        "grad and param do not obey the gradient layout contract. This is not an error, but may "
        f"impair performance. grad.shape = {grad.shape}, strides() = {grad.strides}; "
        f"param.shape = {leaf.shape}, strides() = {leaf.strides}",
        UserWarning,
        stacklevel=2,
    )
