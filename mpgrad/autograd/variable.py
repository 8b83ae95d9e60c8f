"""Variable: PyTorch's old name of the Tensor, and the place of ``queue_callback`` for its users."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.autograd.running.running_backward import checkpoint_is_valid, queue_callback
from mpgrad.base.dtype import default_float
from mpgrad.recording.tensors.tensor import Tensor


class ExecutionEngine:
    """The object that code written for PyTorch reaches as ``Variable._execution_engine``."""

    @staticmethod
    def queue_callback(callback: Callable[[], Any]) -> None:
        """See :func:`mpgrad.autograd.graph.queue_callback`."""
        queue_callback(callback)

    @staticmethod
    def is_checkpoint_valid() -> bool:
        """Whether no backward on this thread computes the gradients of some inputs only."""
        return checkpoint_is_valid()


class _VariableType(type):
    _execution_engine = ExecutionEngine()

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor)

    def __call__(
        cls, data: Any = None, requires_grad: bool = False, volatile: bool = False
    ) -> Tensor:
        if volatile:
            _warn_of_volatile()
        if data is None:
            data = Tensor(np.empty(0, default_float()))
        if not isinstance(data, Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        return data.detach().requires_grad_(requires_grad)


class Variable(metaclass=_VariableType):
    """``Variable(tensor, requires_grad)`` is ``tensor.detach()``; every Tensor is a Variable.

    Raises:
        TypeError: the argument is no Tensor.
    """


# ---------------------------------------------------------------------- Tensor.volatile


def _warn_of_volatile() -> None:
    warnings.warn(
        "volatile was removed and now has no effect. Use `with mg.no_grad():` instead.",
        UserWarning,
        stacklevel=3,
    )


def _get_volatile(self: Tensor) -> bool:
    """Always False; ``no_grad()`` has replaced it."""
    warnings.warn(
        "volatile was removed (Variable.volatile is always False)", UserWarning, stacklevel=2
    )
    return False


def _set_volatile(self: Tensor, value: Any) -> None:
    _warn_of_volatile()


PROPERTIES = {"volatile": property(_get_volatile, _set_volatile)}
