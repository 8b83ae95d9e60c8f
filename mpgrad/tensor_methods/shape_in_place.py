"""In-place changes of a shape: ``transpose_``, ``squeeze_``, ``resize_``, ``set_`` and so on.

No element changes, only the tensor's view of its memory. The graph is that of the out-of-place
form; the version still counts the change, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mpgrad.arrays.cuda.device_arrays import on
from mpgrad.base.memory_formats import MemoryFormat, contiguous_format, preserve_format
from mpgrad.ops.new_tensors.creation import shape_from
from mpgrad.ops.shapes import shape, windows_and_slices
from mpgrad.recording.dispatch.in_place import check_recordable, refuse_inference_tensor
from mpgrad.recording.graph.grad_modes import is_grad_enabled, is_inference_mode_enabled, no_grad
from mpgrad.recording.tensors import storage
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.recording.tensors.view import set_history
from mpgrad.tensor_methods.storages import UntypedStorage


def _in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def method(self: Tensor, *arguments: Any, **options: Any) -> Tensor:
        refuse_inference_tensor(self)
        if is_grad_enabled() and self.requires_grad:
            check_recordable(self)
        _become(self, function(self, *arguments, **options))
        return self

    method.__name__ = f"{function.__name__}_"
    method.__doc__ = f"``{function.__name__}`` in place, of the shape alone; recorded like it."
    return method


def _become(tensor: Tensor, view: Tensor) -> None:
    """Give ``tensor`` the shape and the history of ``view``, a view of it."""
    if tensor._view is None:
        tensor._was_reshaped = True
        if tensor._grad_fn is None:  # the old AccumulateGrad expects gradients of the old shape
            tensor._accumulator = None
    else:
        if view._view is not None:
            view._view.creation = tensor._view.creation
        tensor._view = view._view
    if view._grad_fn is not None:
        set_history(tensor, view._grad_fn, view._output_nr)
    tensor._array = view._array
    tensor._version_counter.count()
    if tensor._view is not None:
        tensor._view.version = tensor._version_counter.value


def resize_(self: Tensor, *size: Any, memory_format: MemoryFormat = contiguous_format) -> Tensor:
    """Change the shape to any number of elements: the first ones stay, new ones are uninitialised.

    ``memory_format`` is accepted: the result is C-contiguous.

    Raises:
        RuntimeError: the tensor requires grad, is a view, or was made in inference mode, which is
            off now.
    """
    wanted = shape_from(size)
    if self.requires_grad and not is_inference_mode_enabled():
        raise RuntimeError("cannot resize variables that require grad")
    refuse_inference_tensor(self)
    if wanted == self.shape:
        return self
    if self._view is not None:
        raise RuntimeError("cannot resize a view of another tensor: clone() it first")
    count = math.prod(wanted)
    with on(self.device):
        elements = self._array.ravel("K")
        if count > elements.size:
            larger = storage.empty((count,), self.dtype, self.device)
            larger[: elements.size] = elements
            elements = larger
        self._array = elements[:count].reshape(wanted)
    self._was_reshaped = True
    self._version_counter.count()
    return self


def resize_as_(
    self: Tensor, other: Tensor, *, memory_format: MemoryFormat = preserve_format
) -> Tensor:
    """``resize_`` to the shape of ``other``."""
    return resize_(self, other.shape)


def set_(
    self: Tensor,
    source: Tensor | UntypedStorage,
    storage_offset: int = 0,
    size: Any = None,
    stride: Any = None,
) -> Tensor:
    """Use the memory of ``source`` from now on, with its shape or as the other arguments say.

    Args:
        source: a tensor, or its storage.
        storage_offset: the place of the first element in the memory.
        size: the new shape; by default that of a tensor, all elements of a storage.
        stride: how far apart neighbours are along each dimension; by default as contiguous ones.

    Raises:
        RuntimeError: the tensor requires grad and recording is on, the dtypes differ, or a place
            lies outside of the memory.
    """
    refuse_inference_tensor(self)
    if is_grad_enabled() and self.requires_grad:
        check_recordable(self)
    if isinstance(source, UntypedStorage):
        source = shape.reshape(source._tensor.detach(), -1)
        size = source.shape if size is None else size
    if size is not None:
        size = shape_from((size,))
        steps = _contiguous_steps(size) if stride is None else stride
        with no_grad():
            source = windows_and_slices.as_strided(source, size, steps, storage_offset)
    if source.dtype != self.dtype:
        raise RuntimeError(
            f"Could not set tensor of type {source.dtype} to a tensor of type {self.dtype}"
        )
    self._array, self._view = source._array, None
    self._accumulator = None  # earlier graphs lead to another leaf now
    self._was_reshaped = True
    self._version_counter.count()
    return self


def _contiguous_steps(size: tuple[int, ...]) -> list[int]:
    return [math.prod(size[k + 1 :]) for k in range(len(size))]


METHODS: dict[str, Callable[..., Any]] = {
    **{
        f"{name}_": _in_place(getattr(shape, name))
        for name in ("transpose", "t", "squeeze", "unsqueeze")
    },
    "as_strided_": _in_place(windows_and_slices.as_strided),
    "resize_": resize_,
    "resize_as_": resize_as_,
    "set_": set_,
}
METHODS["swapaxes_"] = METHODS["swapdims_"] = METHODS["transpose_"]
