"""Reducer: averages the gradients of one model over the ranks, while its backward runs.

Gradients travel in buckets. A bucket leaves when all its gradients are there and all buckets before
it have left: so all ranks reduce them in one order.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mpgrad.autograd.running.running_backward import (
    RunningBackward,
    innermost,
    note_early_change,
    queue_callback,
)
from mpgrad.distributed.collectives import broadcast
from mpgrad.distributed.futures import Future
from mpgrad.distributed.grad_bucket import GradBucket, buckets
from mpgrad.distributed.process_group import ProcessGroup, get_global_rank
from mpgrad.distributed.reductions import ReduceOp, reduction
from mpgrad.distributed.tensor_buffers import flat_copy, put
from mpgrad.ops.new_tensors.creation import from_numpy
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.graph.hooks import RemovableHandle
from mpgrad.recording.tensors.accumulate_grad import AccumulateGrad
from mpgrad.recording.tensors.tensor import Tensor

Array = Any
#: Takes a state and a bucket, and gives the future of what its gradients become.
CommHook = Callable[[Any, GradBucket], Future]

_UNFINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This "
    "error indicates that your "
)
_UNUSED = (
    "module has parameters that were not used in producing loss. You can enable unused parameter "
    "detection by passing the keyword argument `find_unused_parameters=True` to "
    "DistributedDataParallel, and by making sure all `forward` function outputs participate in "
    "calculating loss."
)
_NOW_UNUSED = (
    "training graph has changed in this iteration, e.g., one parameter is used in first iteration, "
    "but then got unused in the second iteration. this is not compatible with static_graph set to "
    "True."
)
CHANGED = (
    "Your training graph has changed in this iteration: {name} got a gradient {times} times, and "
    "{expected} times in the first one. This is not compatible with static_graph=True."
)


class Reducer:
    """Hangs a hook on each parameter; what it does it does in the thread that calls backward.

    Args:
        parameters: those that are trained, with their names; the same on all ranks.
        group: of ranks.
        bucket_bytes: how much a bucket holds.
        finds_unused: some parameters may have no part in some losses.
        is_static: every backward gives each parameter a gradient as often as the first one does.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, Tensor]],
        group: ProcessGroup,
        bucket_bytes: int,
        *,
        finds_unused: bool,
        is_static: bool = False,
    ) -> None:
        self._names = [name for name, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        self._group, self._bucket_bytes = group, bucket_bytes
        self._finds_unused = finds_unused and not is_static
        self._buckets = buckets(self._parameters, bucket_bytes)
        #: How often a backward gives each a gradient.
        self._expected = np.ones(len(parameters), np.int64)
        #: The first backward of a static graph, which shows that, has not been.
        self._is_to_count = self._is_static = is_static
        #: Buckets are made anew after the first backward, where each has the same order.
        self._is_to_rebuild, self._has_finished = not self._finds_unused, False
        #: The parameters in the order in which the gradients of the last backward came.
        self._order: dict[int, None] = {}
        #: Those that have got a gradient since the last reduction, and whether any rank's has.
        self._used: set[int] = set()
        self._used_somewhere = np.ones(len(parameters), np.bool_)
        self._comm_hook: tuple[CommHook, Any] | None = None
        self._divisor = group.size()
        #: Whether the next backward is to reduce; the gradients that have come in it.
        self._is_armed, self._counts = False, Counter[int]()
        #: Those whose gradients are complete; of these, the ones that the backward does not reach.
        self._ready: set[int] = set()
        self._given: set[int] = set()
        #: Those that the outputs of the last forward reach, but not the backward that has averaged.
        self._left_out: set[int] = set()
        #: Each waits for a bucket that has left, and gives its average.
        self._works: list[Callable[[], Array]] = []
        handles = [
            parameter.register_post_accumulate_grad_hook(_hook(weakref.ref(self), index))
            for index, parameter in enumerate(self._parameters)
        ]
        weakref.finalize(self, _remove, handles)
        #: While it averages those of an autograd context: what is there in place of ``.grad``.
        self._of_context: dict[Tensor, Tensor] | None = None
        _reducers[next(_numbers)] = self

    def register_comm_hook(self, state: Any, hook: CommHook) -> None:
        """Have ``hook(state, bucket)`` reduce the buckets.

        Raises:
            RuntimeError: there is one.
            TypeError: it cannot be called.
        """
        if not callable(hook):
            raise TypeError("Communication hook must be callable.")
        if self._comm_hook is not None:
            raise RuntimeError(
                "register_comm_hook or register_builtin_comm_hook can only be called once."
            )
        self._comm_hook = hook, state

    # ------------------------------------------------------------------ around a forward

    def check_finished(self) -> None:
        """Before a forward.

        Raises:
            RuntimeError: the last backward left out some parameters.
        """
        if self._is_armed and len(self._ready) > len(self._given):
            missing = [k for k in range(len(self._parameters)) if k not in self._ready]
            self._disarm()
            raise RuntimeError(self._unfinished(missing))

    def _unfinished(self, missing: Sequence[int]) -> str:
        of_rank = f"which did not receive grad for rank {self._group.rank()}:"
        indices = " ".join(map(str, missing))
        names = ", ".join(self._names[k] for k in missing)
        return (
            f"{_UNFINISHED}{_NOW_UNUSED if self._is_static else _UNUSED}\n"
            f"Parameter indices {of_rank} {indices}\nParameters {of_rank} {names}"
        )

    def rebuild(self, source: int) -> None:
        """Before a forward, on all ranks: if that is due, make buckets in the order of ``source``.

        Args:
            source: a rank of the group that took part in the first backward.
        """
        if not (self._is_to_rebuild and self._has_finished):
            return
        self._is_to_rebuild = False
        others = [k for k in reversed(range(len(self._parameters))) if k not in self._order]
        told = from_numpy(np.array([[*self._order, *others], self._expected], np.int64))
        broadcast(told, get_global_rank(self._group, source), self._group)
        order, expected = told.numpy()
        self._buckets = buckets(self._parameters, self._bucket_bytes, map(int, order))
        if not self._order:  # this rank has had no backward yet
            self._expected = expected.copy()

    def prepare(self, outputs: Iterable[Tensor], divisor: int) -> None:
        """After a forward whose backward is to reduce, and to divide the sums."""
        self._disarm()
        self._is_armed, self._divisor = True, divisor
        self._order.clear()
        if self._finds_unused:
            used = _leaves_of(outputs)
            self._given = {k for k, p in enumerate(self._parameters) if id(p) not in used}
        elif self._is_static and not self._is_to_count:
            self._given = set(map(int, np.flatnonzero(self._expected == 0)))
        self._ready = set(self._given)

    def _disarm(self) -> None:
        self._is_armed = False
        self._counts.clear()
        self._ready, self._given, self._works = set(), set(), []
        self._left_out = set()

    def skip(self) -> None:
        """After a forward whose backward is to reduce nothing."""
        self._disarm()

    # ------------------------------------------------------------------ in the backward

    def note_gradient(self, index: int) -> None:
        """The gradient of a parameter, unless it is undefined, has been added to its ``.grad``."""
        if self._gradient(index) is not None:
            self._used.add(index)
        if index in self._left_out:
            self._complain(index)
        if not self._is_armed:
            return
        self._counts[index] += 1
        self._order.pop(index, None)
        self._order[index] = None
        ends_with_backward = self._is_to_count or self._finds_unused
        if ends_with_backward and self._counts.total() == 1:
            running = innermost()
            assert running is not None
            running.outermost().queue(self._finish_with_backward)
        if self._is_to_count:
            return
        times, expected = self._counts[index], self._expected[index]
        if times > expected or index in self._given:
            self._complain(index)
        if times == expected:
            self._ready.add(index)
            self._launch()
            if len(self._ready) == len(self._parameters) and not ends_with_backward:
                queue_callback(self._finish)

    def _complain(self, index: int) -> None:
        if self._is_static:
            raise self._changed(index, self._counts[index])
        raise RuntimeError(
            f"Expected to mark a variable ready only once: {self._names[index]}. It is used in "
            "several backward passes of one forward, or outside of forward. Where each backward "
            "does the same, give DistributedDataParallel static_graph=True."
        )

    def _changed(self, index: int, times: int) -> RuntimeError:
        name, expected = self._names[index], self._expected[index]
        return RuntimeError(CHANGED.format(name=name, times=times, expected=expected))

    def _launch(self) -> None:
        """Begin to reduce the buckets whose turn it is."""
        while len(self._works) < len(self._buckets):
            held = self._buckets[len(self._works)]
            if not self._ready.issuperset(held):
                return
            self._works.append(self._start([self._contribution(index) for index in held]))

    def _contribution(self, index: int) -> Array:
        gradient = self._gradient(index)
        if gradient is None:
            parameter = self._parameters[index]
            return np.zeros(parameter.numel(), parameter._array.dtype)
        return flat_copy(gradient)

    def _gradient(self, index: int) -> Tensor | None:
        parameter, of_context = self._parameters[index], self._of_context
        return parameter._grad if of_context is None else of_context.get(parameter)

    def _start(self, contributions: Sequence[Array]) -> Callable[[], Array]:
        """Begin to reduce the next bucket; what waits for it, and gives the average."""
        flat, number, divisor = np.concatenate(contributions), len(self._works), self._divisor
        if self._comm_hook is None:
            # A name of its own: it fits no collective that a rank begins after it has caught what
            # its backward raised.
            name = f"gradients of bucket {number}, all_reduce"
            work = self._group.start(reduction(flat, ReduceOp.SUM, self._group, None, name))

            def average() -> Array:
                work.wait()
                return np.divide(flat, divisor, out=flat)

            return average
        parameters = [self._parameters[index] for index in self._buckets[number]]
        bucket = GradBucket(number, flat, parameters, number == len(self._buckets) - 1)
        hook, state = self._comm_hook
        with no_grad():
            future = hook(state, bucket)
        if not isinstance(future, Future):
            raise TypeError(f"Communication hook: it has to return a Future, not {future!r}")
        return lambda: _of_hook(future.wait(), flat)

    def _finish_with_backward(self) -> None:
        """At the end of a backward that may leave out parameters: only now all counts are known."""
        everything = set(range(len(self._parameters)))
        left_out = everything - self._ready
        if self._is_to_count:
            self._is_to_count, left_out = False, set()
            self._expected[:] = [self._counts[index] for index in everything]
        self._ready = everything
        self._launch()
        self._finish(agrees_on_used=True)
        self._left_out = left_out

    def _finish(self, *, agrees_on_used: bool = False) -> None:
        """When the backward is over: every ``.grad`` gets the average, or none does."""
        works = self._works
        self._disarm()
        if agrees_on_used:
            self._agree_on_used()
        averages = [wait() for wait in works]
        for flat, held in zip(averages, self._buckets, strict=True):
            at = 0
            for index in held:
                parameter = self._parameters[index]
                length = parameter.numel()
                if self._used_somewhere[index]:
                    self._put(parameter, flat[at : at + length])
                at += length
        self._has_finished = True
        self._used.clear()

    def _put(self, parameter: Tensor, average: Array) -> None:
        if self._of_context is None:
            _set_gradient(parameter, average)
        else:
            self._of_context[parameter] = from_numpy(average.reshape(parameter.shape).copy())

    def average_in_context(self, new: Iterable[Tensor], gradients: dict[Tensor, Tensor]) -> None:
        """Average what an autograd context holds, as a backward averages ``.grad``.

        Args:
            new: the leaves that have got a gradient in this backward.
            gradients: by leaf, the sums of the context with those; averages take their place.
        """
        got = {id(leaf) for leaf in new}
        self._of_context = gradients
        try:
            with RunningBackward():  # its end is that of the averages
                for index in reversed(range(len(self._parameters))):
                    if id(self._parameters[index]) in got:
                        self.note_gradient(index)
        finally:
            self._of_context = None

    def _agree_on_used(self) -> None:
        used = np.array([k in self._used for k in range(len(self._parameters))])
        name = "which parameters are used, all_reduce"
        self._group.start(reduction(used, ReduceOp.MAX, self._group, None, name)).wait()
        self._used_somewhere = used

    def take_part(self) -> None:
        """Take part in the backward of the others with zeros, and drop what comes of it."""
        self._disarm()
        for held in self._buckets:
            parts = [self._parameters[k] for k in held]
            zeros = [np.zeros(part.numel(), part._array.dtype) for part in parts]
            self._works.append(self._start(zeros))
        if self._finds_unused or self._is_to_count:
            self._used.clear()
            self._agree_on_used()
        self._is_to_count = False
        for wait in self._works:
            wait()
        self._has_finished = True
        self._disarm()


#: All that are there, in the order in which they were made.
_reducers: weakref.WeakValueDictionary[int, Reducer] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def reducers_of(leaves: Iterable[Tensor]) -> list[Reducer]:
    """Those of the models to which some of ``leaves`` belong."""
    got = {id(leaf) for leaf in leaves} if _reducers else set()
    return [one for one in [*_reducers.values()] if not got.isdisjoint(map(id, one._parameters))]


def _of_hook(value: Any, flat: Array) -> Array:
    """What a communication hook gives, in place of ``flat``."""
    if not isinstance(value, Tensor) or value.numel() != flat.size:
        raise TypeError(
            "Communication hook: its future has to give one Tensor with the elements of the "
            f"bucket, {flat.size:,}, not {value!r}"
        )
    return flat_copy(value).astype(flat.dtype, copy=False)


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
        waiting += [edge[0] for edge in node.next_edges if edge is not None]
    return found
