"""AccumulateGrad: the sink at each leaf that adds a finished gradient to ``.grad``."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.autograd.node import SEQUENCE_NR_MAX, Node
from mpgrad.storage import adopt
from mpgrad.tensor import Tensor, metadata_of


class AccumulateGrad(Node):
    """Owns the leaf; the leaf holds it weakly, so that it lives as long as a graph that uses it."""

    __slots__ = ("variable",)

    def __init__(self, variable: Tensor) -> None:
        super().__init__((), (metadata_of(variable),), SEQUENCE_NR_MAX)
        self.variable = variable
        if variable._leaf_hooks is not None:
            self.own_hooks().tensor[0] = variable._leaf_hooks

    def accumulate(self, grad: np.ndarray[Any, Any], *, exclusive: bool) -> None:
        """Add ``grad`` to ``variable.grad``, keeping the identity of a ``.grad`` that exists.

        Args:
            grad: of the variable's shape and dtype.
            exclusive: nobody else holds the array, so that ``.grad`` may adopt it as it is.
        """
        variable = self.variable
        if not variable._requires_grad:
            return
        existing = variable._grad
        if existing is not None:
            existing._version_counter.value += 1
            np.add(existing._array, grad, out=existing._array)
            return
        whole = exclusive and grad.flags.c_contiguous and grad.flags.writeable
        variable._grad = Tensor(grad if whole else adopt(grad))

    def check(self) -> None:
        """Raise if the gradient could not be added now (a commit is all or none).

        Raises:
            RuntimeError: the leaf became part of a graph, or its ``.grad`` cannot be written.
        """
        variable = self.variable
        if getattr(variable, "_belongs_to_client", False):
            raise RuntimeError(
                "a backward() inside a Function that runs on a worker would add to the .grad of a "
                'tensor of the calling process, which it cannot reach. Set run_on = "client" on '
                "the Function, or use mg.grad() and return the gradients."
            )
        if variable._grad_fn is not None:
            raise RuntimeError("leaf variable has been moved into the graph interior")
        grad = variable._grad
        if grad is None:
            return
        expected = self.input_metadata[0]
        if grad.shape != expected.shape or grad.dtype != expected.dtype:
            raise RuntimeError(
                f"the gradient of a leaf has shape {expected.shape} and dtype {expected.dtype}, but"
                f" its .grad has shape {grad.shape} and dtype {grad.dtype}"
            )
        if not grad._array.flags.writeable:
            raise RuntimeError("a leaf's .grad is read-only, so that nothing can be added to it")
