"""register_multi_grad_hook(): one hook on the gradients of several tensors."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from mpgrad.autograd.running.running_backward import (
    RunningBackward,
    innermost,
    will_engine_execute_node,
)
from mpgrad.recording.graph.hooks import MultiHandle, RemovableHandle
from mpgrad.recording.graph.node import Node
from mpgrad.recording.tensors.tensor import Tensor, gradient_edge

_MODES = ("all", "any")


def register_multi_grad_hook(
    tensors: Sequence[Tensor], fn: Callable[[Any], None], *, mode: str = "all"
) -> RemovableHandle:
    """Call ``fn`` once per backward with the gradients of ``tensors``.

    Args:
        tensors: the tensors to wait for, except those that the running backward does not reach.
        fn: in mode "all" it gets a list with the gradient of each tensor, or None, when the last
            of them is known; in mode "any" it gets the first known gradient. It should not change
            them.
        mode: "all" or "any".

    Returns:
        A handle that removes the hook.

    Raises:
        ValueError: another mode.
        AssertionError: a tensor does not require grad (mode "all"; mode "any" ignores it).
    """
    if mode not in _MODES:
        raise ValueError(f"Expects mode to be one of {_MODES} but got {mode}")
    if mode == "any":
        return _register_any([tensor for tensor in tensors if tensor.requires_grad], fn)
    for index, tensor in enumerate(tensors):
        if not tensor.requires_grad:
            raise AssertionError(
                f"Expected gradient function to be set: tensor {index} does not require grad"
            )
    hook = _AllHook([gradient_edge(tensor)[0] for tensor in tensors], fn)
    return MultiHandle(
        [
            tensor.register_hook(functools.partial(hook.receive, index))
            for index, tensor in enumerate(tensors)
        ]
    )


class _AllHook:
    """The gradients so far, for each running backward."""

    def __init__(self, nodes: list[Node], fn: Callable[[list[Tensor | None]], None]) -> None:
        self._nodes, self._fn = nodes, fn
        self._lock = threading.Lock()
        self._waiting: weakref.WeakKeyDictionary[RunningBackward, _Arrivals] = (
            weakref.WeakKeyDictionary()
        )

    def receive(self, index: int, grad: Tensor | None) -> None:
        """Tensor hook of tensor ``index``."""
        running = _inside_backward()
        with self._lock:
            arrivals = self._waiting.get(running)
            if arrivals is None:
                expected = sum(map(will_engine_execute_node, self._nodes))
                arrivals = self._waiting[running] = _Arrivals(expected, len(self._nodes))
            arrivals.expected -= 1
            arrivals.grads[index] = grad
            if arrivals.expected:
                return
            del self._waiting[running]
        self._fn(arrivals.grads)


class _Arrivals:
    def __init__(self, expected: int, count: int) -> None:
        #: The number of tensor hooks that have not been called.
        self.expected = expected
        self.grads: list[Tensor | None] = [None] * count


def _register_any(tensors: Sequence[Tensor], fn: Callable[[Tensor | None], None]) -> MultiHandle:
    lock = threading.Lock()
    served: weakref.WeakSet[RunningBackward] = weakref.WeakSet()

    @functools.wraps(fn)
    def first(grad: Tensor | None) -> None:
        running = _inside_backward()
        with lock:
            if running in served:
                return
            served.add(running)
        fn(grad)

    return MultiHandle([tensor.register_hook(first) for tensor in tensors])


def _inside_backward() -> RunningBackward:
    running = innermost()
    if running is None:
        raise AssertionError("expected this hook to be called inside a backward call")
    return running
