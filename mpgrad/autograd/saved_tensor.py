"""SavedTensor: what forward keeps for backward, with the version it had then.

A saved input keeps the Tensor itself; a saved output keeps only its array, because the Node would
otherwise own its own output and form a cycle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpgrad.tensor import Tensor

if TYPE_CHECKING:
    from mpgrad.autograd.node import Node


class SavedTensor:
    """One tensor that a Node saved (compare ``torch::autograd::SavedVariable``)."""

    __slots__ = ("_array", "_counter", "_output_nr", "_requires_grad", "_tensor", "_version")

    def __init__(self, tensor: Tensor, *, is_output: bool) -> None:
        self._tensor = None if is_output else tensor
        self._array = tensor._array
        self._counter = tensor._version_counter
        self._version = tensor._version_counter.value
        self._output_nr = tensor._output_nr
        self._requires_grad = tensor._requires_grad

    def array(self, owner: Node) -> Any:
        """The saved array.

        Raises:
            RuntimeError: the tensor was changed in place since ``owner`` saved it.
        """
        if self._counter.value != self._version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{self._array.dtype} {list(self._array.shape)}], saved by "
                f"{owner.name()}, is at version {self._counter.value}; expected version "
                f"{self._version} instead. Hint: clone() the tensor before changing it, or enable "
                "anomaly detection to find the operation that failed to compute its gradient, with "
                "mg.autograd.set_detect_anomaly(True)."
            )
        return self._array

    def tensor(self, owner: Node) -> Tensor:
        """The saved tensor, an output with its history re-attached."""
        array = self.array(owner)
        if self._tensor is not None:
            return self._tensor
        return Tensor(
            array,
            requires_grad=self._requires_grad,
            grad_fn=owner if self._requires_grad else None,
            output_nr=self._output_nr,
            version_counter=self._counter,
        )
