"""Variable: PyTorch's old name of the Tensor, and where its users look for ``queue_callback``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpgrad.autograd.running import queue_callback
from mpgrad.tensor import Tensor


class ExecutionEngine:
    """What code written for PyTorch reaches as ``Variable._execution_engine``."""

    @staticmethod
    def queue_callback(callback: Callable[[], Any]) -> None:
        """See :func:`mpgrad.autograd.graph.queue_callback`."""
        queue_callback(callback)


class _VariableType(type):
    _execution_engine = ExecutionEngine()

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor)

    def __call__(cls, data: Any = None, requires_grad: bool = False) -> Tensor:
        if not isinstance(data, Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        return data.detach().requires_grad_(requires_grad)


class Variable(metaclass=_VariableType):
    """``Variable(tensor)`` is ``tensor.detach()``; every Tensor is a Variable.

    Raises:
        TypeError: the argument is no Tensor.
    """
