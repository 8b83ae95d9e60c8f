"""The same memory with another history: ``detach``, ``detach_`` and ``.data``."""

from __future__ import annotations

from mpgrad.recording.tensors.copy_on_write_versions import CopyOnWriteVersions
from mpgrad.recording.tensors.storage import INFERENCE
from mpgrad.recording.tensors.tensor import Tensor


def detach(self: Tensor) -> Tensor:
    """The same array without history; it shares the version counter."""
    counter = self._version_counter
    made = Tensor(self._array, version_counter=counter)
    if type(counter) is CopyOnWriteVersions:
        made._view = self._view
        counter.add(made)
    return made


def detach_(self: Tensor) -> Tensor:
    """Remove the history of this tensor and return it; it no longer requires grad.

    Raises:
        RuntimeError: it is a view.
    """
    if self._view is not None:
        raise RuntimeError("Can't detach views in-place. Use detach() instead.")
    self._grad_fn, self._output_nr, self._requires_grad = None, 0, False
    self._retains_grad = False
    return self


def get_data(self: Tensor) -> Tensor:
    """The same array without history; saved tensors do not notice changes through it."""
    if type(self._version_counter) is CopyOnWriteVersions:
        return detach(self)
    return Tensor(self._array, version_counter=INFERENCE if self.is_inference() else None)


def set_data(self: Tensor, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"Variable data has to be a tensor, but got {type(value).__name__}")
    if (value.shape, value.dtype, value.device) != (self.shape, self.dtype, self.device):
        if self._requires_grad and value.dtype.kind not in "fc":
            raise RuntimeError(
                "data set to a tensor that requires gradients must be floating point or complex "
                "dtype"
            )
        # The old AccumulateGrad expects gradients of the old shape, dtype and device.
        self._accumulator = None
    if type(value._version_counter) is CopyOnWriteVersions:
        value._version_counter.become_own()
    self._array = value._array


def delete_data(self: Tensor) -> None:
    raise RuntimeError("Deleting tensor data is not allowed. Delete tensor instead!")
