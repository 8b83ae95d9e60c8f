"""Reducer: averages the gradients of one model over the ranks, while its backward runs.

Gradients travel in buckets. A bucket leaves when all its gradients are there and all buckets before
it have left: so all ranks reduce them in one order.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mpgrad.autograd.running.running_backward import note_early_change, queue_callback
from mpgrad.distributed.operation import Work
from mpgrad.distributed.process_group import ProcessGroup
from mpgrad.distributed.reductions import ReduceOp, reduction
from mpgrad.distributed.tensor_buffers import flat_copy, put
from mpgrad.graph.hooks import RemovableHandle
from mpgrad.ops.creation import from_numpy
from mpgrad.tensors.accumulate_grad import AccumulateGrad
from mpgrad.tensors.tensor import Tensor

Array = Any

#: Bytes of the first bucket, which waits for no other: the sooner it leaves, the better.
FIRST_BUCKET_BYTES = 1024 * 1024

UNFINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This "
    "error indicates that your module has parameters that were not used in producing loss: "
    "{names}. Give DistributedDataParallel find_unused_parameters=True, and make sure that all "
    "outputs of forward take part in the loss."
)


class Reducer:
    """Hangs a hook on each parameter; what it does it does in the thread that calls backward.

    Args:
        parameters: those that are trained, with their names; the same on all ranks.
        group: of ranks.
        bucket_bytes: how much a bucket holds.
        finds_unused: some parameters may have no part in some losses.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, Tensor]],
        group: ProcessGroup,
        bucket_bytes: int,
        *,
        finds_unused: bool,
    ) -> None:
        self._names = [name for name, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        self._group, self._finds_unused = group, finds_unused
        self._buckets = buckets(self._parameters, bucket_bytes)
        self._bucket_of = {index: k for k, held in enumerate(self._buckets) for index in held}
        self._is_armed = False
        self._ready: set[int] = set()
        self._unused: set[int] = set()
        self._works: list[tuple[Work, Array]] = []
        handles = [
            parameter.register_post_accumulate_grad_hook(_hook(weakref.ref(self), index))
            for index, parameter in enumerate(self._parameters)
        ]
        weakref.finalize(self, _remove, handles)

    # ------------------------------------------------------------------ around a forward

    def check_finished(self) -> None:
        """Before a forward.

        Raises:
            RuntimeError: the last backward left out some parameters.
        """
        if self._is_armed and len(self._ready) > len(self._unused):
            missing = [n for k, n in enumerate(self._names) if k not in self._ready]
            self._disarm()
            raise RuntimeError(UNFINISHED.format(names=", ".join(missing)))

    def prepare(self, outputs: Iterable[Tensor]) -> None:
        """After a forward whose backward is to reduce."""
        self._disarm()
        self._is_armed = True
        if self._finds_unused:
            used = _leaves_of(outputs)
            self._unused = {k for k, p in enumerate(self._parameters) if id(p) not in used}
            self._ready = set(self._unused)

    def _disarm(self) -> None:
        self._is_armed = False
        self._ready, self._unused, self._works = set(), set(), []

    def skip(self) -> None:
        """After a forward whose backward is to reduce nothing."""
        self._disarm()

    # ------------------------------------------------------------------ in the backward

    def note_gradient(self, index: int) -> None:
        """The gradient of a parameter has been added to its ``.grad``."""
        if not self._is_armed:
            return
        if index in self._ready:
            name = self._names[index]
            raise RuntimeError(
                f"Expected to mark a variable ready only once: {name}. It is used in several "
                "backward passes of one forward, or outside of forward."
            )
        self._ready.add(index)
        self._launch()
        if len(self._ready) == len(self._parameters):
            queue_callback(self._finish)

    def _launch(self) -> None:
        """Begin to reduce the buckets whose turn it is."""
        while len(self._works) < len(self._buckets):
            held = self._buckets[len(self._works)]
            if not self._ready.issuperset(held):
                return
            flat = np.concatenate([self._contribution(index) for index in held])
            self._works.append((self._start(flat, ReduceOp.SUM), flat))

    def _contribution(self, index: int) -> Array:
        parameter = self._parameters[index]
        if index in self._unused or parameter._grad is None:
            return np.zeros(parameter.numel(), parameter._array.dtype)
        return flat_copy(parameter._grad)

    def _start(self, flat: Array, op: ReduceOp) -> Work:
        return self._group.start(reduction(flat, op, self._group, None))

    def _finish(self) -> None:
        """When the backward is over: every ``.grad`` gets the average, or none does."""
        works, unused = self._works, self._unused
        self._disarm()
        used = np.array([k not in unused for k in range(len(self._parameters))])
        if self._finds_unused:
            self._start(used, ReduceOp.MAX).wait()
        for work, _ in works:
            work.wait()
        for (_, flat), held in zip(works, self._buckets, strict=True):
            np.divide(flat, self._group.size(), out=flat)
            at = 0
            for index in held:
                parameter = self._parameters[index]
                length = parameter.numel()
                if used[index]:
                    _set_gradient(parameter, flat[at : at + length])
                at += length


def buckets(parameters: Sequence[Tensor], bucket_bytes: int) -> list[list[int]]:
    """Which parameters travel together: the last first, as their gradients come.

    A bucket has one dtype.
    """
    found: list[list[int]] = []
    open_of: dict[np.dtype[Any], tuple[list[int], int]] = {}
    for index in reversed(range(len(parameters))):
        array = parameters[index]._array
        held, size = open_of.get(array.dtype, ([], 0))
        if not held:
            found.append(held)
        held.append(index)
        size += array.nbytes
        limit = min(FIRST_BUCKET_BYTES, bucket_bytes) if held is found[0] else bucket_bytes
        open_of[array.dtype] = ([], 0) if size >= limit else (held, size)
    return found


def _set_gradient(parameter: Tensor, values: Array) -> None:
    note_early_change(parameter)
    if parameter._grad is None:
        parameter.grad = from_numpy(values.reshape(parameter.shape).copy())
    else:
        put(parameter._grad, values)


def _hook(reducer: weakref.ref[Reducer], index: int) -> Callable[[Tensor], None]:
    def note_gradient(parameter: Tensor) -> None:
        alive = reducer()
        if alive is not None:
            alive.note_gradient(index)

    return note_gradient


def _remove(handles: Iterable[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _leaves_of(outputs: Iterable[Tensor]) -> set[int]:
    """The ids of the leaves that the graph behind ``outputs`` reaches."""
    found: set[int] = set()
    seen: set[Any] = set()
    waiting: list[Any] = []
    for output in outputs:
        if output.grad_fn is None:
            found.add(id(output))
        else:
            waiting.append(output.grad_fn)
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, AccumulateGrad):
            found.add(id(node.variable))
        waiting += [edge.function for edge in node.next_edges if edge is not None]
    return found
