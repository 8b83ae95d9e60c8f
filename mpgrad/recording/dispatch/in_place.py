"""In-place changes with recording: the implementation of all methods with a trailing underscore.

The result is written into the tensor's own memory, and the graph is that of the out-of-place form.
For a view, the base gets one additional Node, a functional operator like any other:
``new_base = copy_slices(old_base, new_view)``. Other views are updated when they are next used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from mpgrad.arrays.cpu.cpu_views import may_overlap, writable_part
from mpgrad.arrays.cuda.device_arrays import (
    CUDA,
    address,
    device_of,
    is_writable,
    moved,
    on,
    on_its_device,
)
from mpgrad.base.device import CPU
from mpgrad.recording.dispatch.operator_call import (
    OperatorNode,
    namespace_for,
    record_call,
    save_results,
    wanted_gradients,
)
from mpgrad.recording.dispatch.operator_mode import MODES
from mpgrad.recording.graph.grad_modes import is_grad_enabled, is_inference_mode_enabled
from mpgrad.recording.graph.registry import Operator, operator
from mpgrad.recording.tensors import saved_tensor_clones
from mpgrad.recording.tensors.copy_on_write_versions import CopyOnWriteVersions
from mpgrad.recording.tensors.storage import INFERENCE
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.recording.tensors.view import set_history

Array = np.ndarray[Any, Any]

copy_slices = operator(
    "copy_slices",
    lambda xp, base, part, *, steps: xp.put_view(base, part, steps),
    base=lambda xp, grad, steps: xp.put_view(grad, 0, steps),
    part=lambda xp, grad, steps: xp.take_view(grad, steps),
)


def call_in_place(
    operator: Operator,
    tensor: Tensor,
    *others: Any,
    write: Callable[..., Any] | None = None,
    **attributes: Any,
) -> Tensor:
    """Run ``operator`` on ``tensor`` and ``others``, write the result into ``tensor``, record it.

    Args:
        operator: its first input is the tensor that changes.
        tensor: the tensor that changes.
        others: the other inputs of the operator.
        write: writes the operator's result into the first of the arrays it gets, without a copy.
        attributes: of the operator.

    Returns:
        ``tensor``.

    Raises:
        RuntimeError: the tensor is a leaf that requires grad (or a view of one) or may not be
            changed under recording for another reason; or the result has another shape.
    """
    refuse_inference_tensor(tensor)
    refuse_shared_elements(tensor, others)
    started = perf_counter() if MODES.observer is not None else 0.0
    pending = begin_change(operator, tensor, others, attributes)
    if write is None:
        write = functools.partial(_copy_result, operator, attributes)
    _overwrite(tensor, others, write)
    if MODES.entered:
        MODES.changed(operator, tensor, others)
    if pending is not None:
        if isinstance(pending._grad_fn, OperatorNode):
            save_results(pending._grad_fn, [pending])
        rebase(tensor, pending)
    if MODES.observer is not None:
        MODES.observer(operator, (tensor, *others), started, tensor)
    return tensor


def overwrite(tensor: Tensor, others: Sequence[Any], write: Callable[..., Any]) -> Tensor:
    """Call ``write`` with the arrays of ``tensor`` and ``others``, unrecorded, to change
    ``tensor``.

    Raises:
        RuntimeError: ``tensor`` may not be written to.
    """
    refuse_inference_tensor(tensor)
    refuse_shared_elements(tensor, others)
    _overwrite(tensor, others, write)
    return tensor


def _overwrite(tensor: Tensor, others: Sequence[Any], write: Callable[..., Any]) -> None:
    if saved_tensor_clones.active is not None:
        saved_tensor_clones.active.before_write(tensor)
    arrays = [value._array if isinstance(value, Tensor) else value for value in others]
    if CUDA.in_use and tensor.device is not CPU:
        with on(tensor.device):
            write(tensor._array, *(_beside(tensor, array) for array in arrays))
    else:
        write(tensor._array, *arrays)
    tensor._version_counter.count()


def _beside(tensor: Tensor, value: Any) -> Any:
    """``value`` on the device of ``tensor``, if it is an array without dimensions or an index.

    Raises:
        RuntimeError: it is another array, on another device.
    """
    if not isinstance(value, np.ndarray):
        return value
    if value.ndim and value.dtype.kind not in "bui":
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{tensor.device} and cpu!"
        )
    return moved(value, tensor.device)


def _copy_result(
    operator: Operator, attributes: dict[str, Any], array: Array, *others: Any
) -> None:
    result = operator.forward(namespace_for(array), array, *others, **attributes)
    np.copyto(array, result, casting="unsafe")


def refuse_inference_tensor(tensor: Tensor) -> None:
    """Raise if ``tensor`` was made in inference mode, and the mode is off.

    Raises:
        RuntimeError: it was; it has no version counter.
    """
    if tensor._version_counter is INFERENCE and not is_inference_mode_enabled():
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed. You can make "
            "a clone to get a normal tensor before doing inplace update."
        )


def refuse_shared_elements(tensor: Tensor, others: Sequence[Any] = ()) -> None:
    """Raise unless each element of ``tensor`` has its own, writable memory.

    Raises:
        RuntimeError: it is an expanded or read-only tensor, or overlaps an operand with a shift.
    """
    if type(tensor._version_counter) is CopyOnWriteVersions:
        tensor._version_counter.become_own()
    if not (is_writable(tensor._array) or _lies_in_writable(tensor)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location, or its memory is read-only (an argument of a call of "
            "parallel_map(), or its result that shares memory with another). Please clone() the "
            "tensor before performing the operation: x = x.clone()."
        )
    for value in others:
        if isinstance(value, Tensor) and _is_shifted(value._array, tensor._array):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to "
                "tensor refer to a single memory location. Please clone() the tensor before "
                "performing the operation."
            )


def _lies_in_writable(tensor: Tensor) -> bool:
    """Make the memory of an expanded tensor (or of a part of it) writable again if possible.

    Returns:
        Whether each element now has its own memory, in a base that may be written to.
    """
    array, view = tensor._array, tensor._view
    if view is None or not isinstance(array, np.ndarray) or not is_writable(view.base._array):
        return False
    if may_overlap(array):
        return False
    if view.base._array.flags.c_contiguous:
        tensor._array = writable_part(view.base._array, array)
        return True
    try:
        array.flags.writeable = True
    except ValueError:  # a part of what strides alone describe
        return False
    return True


def _is_shifted(array: Array, target: Array) -> bool:
    """Whether two dense arrays overlap and are not the same."""
    if (array.base is None and target.base is None) or device_of(array) != device_of(target):
        return False
    with on_its_device(array):
        if not (array.flags.forc and target.flags.forc and np.may_share_memory(array, target)):
            return False
    return (address(array), array.strides, array.shape) != (
        address(target),
        target.strides,
        target.shape,
    )


def begin_change(
    operator: Operator, tensor: Tensor, others: Sequence[Any], attributes: dict[str, Any]
) -> Tensor | None:
    """Record ``operator`` before ``tensor`` is overwritten.

    Returns:
        The new value of ``tensor`` with its history, or None if nothing is to be recorded.

    Raises:
        RuntimeError: it must be recorded and cannot be.
    """
    if not is_grad_enabled():
        return None
    needs = wanted_gradients(operator, (tensor, *others))
    if True not in needs:
        if tensor.requires_grad:
            raise RuntimeError(f"{operator.name}_: its derivative is not implemented")
        return None
    check_recordable(tensor)
    old = _before(tensor, copied=operator.inputs[0] in operator.wanted_names(needs))
    new = Tensor(tensor._array, version_counter=tensor._version_counter)
    record_call(operator, (old, *others), [new], needs, attributes, results_follow=True)
    return new if new._grad_fn is not None else None


def check_recordable(tensor: Tensor) -> None:
    """Raise if an in-place change of ``tensor`` cannot be recorded.

    Raises:
        RuntimeError: it is a leaf that requires grad, a view of one, or a view that may not change.
    """
    view = tensor._view
    if view is not None:
        view.check(tensor, "is being")
        if tensor.requires_grad and view.base._grad_fn is None:
            raise RuntimeError(
                "a view of a leaf Variable that requires grad is being used in an in-place "
                "operation. Work on a clone() of the leaf, or inside no_grad()."
            )
    if tensor.requires_grad and tensor.grad_fn is None:
        raise RuntimeError(
            "a leaf Variable that requires grad is being used in an in-place operation. Work on a "
            "clone() of it, or inside no_grad()."
        )


def _before(tensor: Tensor, *, copied: bool) -> Tensor:
    """A stand-in for ``tensor`` as it is now: same history, and the same values if ``copied``.

    A view's history is made anew from its base, so that hooks on the old view are not called:
    they belong to gradients of that view, not to this change.
    """
    source = tensor
    if tensor._view is not None and tensor._view.base._requires_grad:
        source = tensor._view.replay(tensor)
    return Tensor(
        _copy(tensor._array) if copied else tensor._array,
        requires_grad=source._requires_grad,
        grad_fn=source._grad_fn,
        output_nr=source._output_nr,
    )


def _copy(array: Any) -> Any:
    with on_its_device(array):
        return namespace_for(array).copy(array)


def rebase(tensor: Tensor, new: Tensor) -> None:
    """Give ``tensor``, which was overwritten, the history of ``new``."""
    node, view = new._grad_fn, tensor._view
    if node is None:
        return
    if view is None:
        set_history(tensor, node, new._output_nr)
        return
    base, steps = view.base, view.steps()
    view.check_base(tensor)
    old_base, new_base = _before(base, copied=False), Tensor(base._array)
    needs = (base._requires_grad, True)
    record_call(copy_slices, (old_base, new), [new_base], needs, {"steps": steps})
    if new_base._grad_fn is not None:
        set_history(base, new_base._grad_fn, new_base._output_nr)
    view.version = -1  # its own history comes from the base now, at its next use
    tensor._requires_grad = True


def increment_version(tensor: Tensor | Iterable[Tensor]) -> None:
    """Count a change that autograd could not see, of one tensor or several.

    A backward that has saved the earlier values then refuses to run.

    Raises:
        RuntimeError: a value is not a Tensor.
    """
    try:
        tensors = [tensor] if isinstance(tensor, Tensor) else list(tensor)
    except TypeError:
        tensors = [None]  # type: ignore[list-item]
    if not all(isinstance(value, Tensor) for value in tensors):
        raise RuntimeError("increment_version expects a Tensor or an Iterable[Tensor] as input")
    for value in tensors:
        value._version_counter.count()
