"""BeginBranch and EndBranch: the two Nodes of torch's own graph that stand for one branch.

    inputs <- EndBranch <- BeginBranch <- outputs

In backward BeginBranch comes first: it hands the gradients to a worker and returns at once.
EndBranch waits for what comes back. torch's engine takes the ready Node with the highest sequence
number first. Those of EndBranch are low, so every BeginBranch that is ready runs before it waits,
and the workers have their gradients side by side. All else is torch's: hooks, ``retain_graph``,
anomaly mode, the order of sums.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from mpgrad.autograd.running.deferred_interrupts import GRACE_MS
from mpgrad.base.thread_state import PerThread
from mpgrad.calls.array_library import ArrayLibrary
from mpgrad.calls.branch_gradients import differentiate, gradients_by_number, require_unsaved
from mpgrad.calls.call import Derivative, Ran
from mpgrad.calls.fork_function import IN_CLIENT, gone
from mpgrad.calls.made_again import made_again
from mpgrad.engine.calls_in_workers import Answered, Request
from mpgrad.engine.submitter import is_serving_thread
from mpgrad.parallel import placing
from mpgrad.torch.derivative_tasks import DerivativeTask, Derived, submit_waiting

Array: TypeAlias = np.ndarray[Any, Any]

#: What a token's gradient is: nobody looks at it.
_TOKEN_SHAPE = (0,)
#: The bytes between two results.
_PADDING = 64
_CHANGED_SINCE = "its worker has died, or create_graph=True asks for it"


class _Counts(PerThread):
    """The calls of a thread: torch's sequence numbers begin anew in each thread, too."""

    def __init__(self) -> None:
        self.next: Iterator[int] = itertools.count(1)


_counts = _Counts()


class _UnderWay(PerThread):
    """The branches that a backward of this thread has begun to differentiate."""

    def __init__(self) -> None:
        self.branches: weakref.WeakSet[ForkedBranch] = weakref.WeakSet()


_under_way = _UnderWay()


@contextmanager
def _others_stopped_on_error() -> Iterator[None]:
    """After an error nobody asks for the other branches of this backward; after Ctrl-C nobody waits
    for their end, either."""
    try:
        yield
    except BaseException as error:
        grace_ms = None if isinstance(error, Exception) else GRACE_MS
        for branch in [*_under_way.branches]:
            branch.stop(backward_number(), grace_ms)
        raise


def stop_left_behind() -> None:
    """Stop what a backward of this thread has begun, and has left by an error elsewhere: a Ctrl-C
    between two Nodes."""
    if _under_way.branches and backward_number() < 0:
        for branch in [*_under_way.branches]:
            branch.stop_all(GRACE_MS)


class BranchPlace(NamedTuple):
    """Where a branch begins in the program: the sequence numbers of its two Nodes."""

    begin: int
    end: int

    @classmethod
    def here(cls) -> BranchPlace:
        """The place of the Node that would be the next one."""
        if not HAS_NUMBERS:
            return cls(-1, -1)
        node = torch.ones((), requires_grad=True).clone().grad_fn
        return cls(node._sequence_nr(), next(_counts.next))  # type: ignore[union-attr]


class ForkedBranch:
    """What both Nodes of a branch know.

    Attributes:
        inputs: of the call, the caller's own tensors.
        needing: the numbers of those that need grad.
        ran: the call; set when its result is there.
    """

    def __init__(self, inputs: Sequence[torch.Tensor], version: Callable[[Any], int]) -> None:
        self.inputs: Sequence[torch.Tensor] = inputs
        self.versions = list(map(version, inputs))
        self.needing = [n for n, one in enumerate(inputs) if one.requires_grad]
        self.ran: Ran | None = None
        self._library: ArrayLibrary | None = None
        self._token, self._number = torch.empty(_TOKEN_SHAPE), -1
        #: By backward, what EndBranch gives (perhaps as a Future), and whether the graph stays.
        self._flights: dict[int, tuple[Any, bool]] = {}

    def take_place(self, place: BranchPlace) -> None:
        """Record EndBranch there in the program."""
        if not self.needing:
            return
        self._token = EndBranch.apply(self, *[self.inputs[n] for n in self.needing])
        node = self._token.grad_fn
        if HAS_NUMBERS and node is not None:
            self._number = place.begin
            node._set_sequence_nr(place.end)

    def attach(self, ran: Ran, library: ArrayLibrary) -> Sequence[torch.Tensor]:
        """Record BeginBranch: ``ran.outputs`` with a history."""
        # Without the outputs: they will hold this branch, by their Node.
        self.ran, self._library = ran._replace(outputs=()), library
        token, self._token = self._token, torch.empty(_TOKEN_SHAPE)
        outputs: tuple[torch.Tensor, ...] = BeginBranch.apply(self, token, ran.outputs)
        node = outputs[0].grad_fn
        if self._number >= 0 and node is not None:
            node._set_sequence_nr(self._number)
        return outputs

    # ------------------------------------------------------------------ backward

    def begin(self, grads: Sequence[torch.Tensor | None]) -> None:
        """Let the branch be differentiated."""
        with self._timed(), _others_stopped_on_error():
            if torch.is_grad_enabled():
                flight: Any = self._recorded_gradients(grads)
            else:
                flight = self._gradients(grads)
            self._is_under_way(flight)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """``auto`` learns how long the caller waits for both passes of a map."""
        map_time = None if self.ran is None else self.ran.lifetime.map_time
        started = perf_counter()
        yield
        if map_time is not None:
            map_time.add((perf_counter() - started) * 1e6)

    def _is_under_way(self, flight: Any) -> None:
        """Note what ``end`` will give. A worker may cause a Ctrl-C as soon as it has its task, so
        this comes before that is submitted."""
        self._flights[backward_number()] = flight, _keeps_graph()
        _under_way.branches.add(self)

    def end(self) -> list[torch.Tensor | None]:
        """The gradient of each input."""
        with self._timed(), _others_stopped_on_error():
            flight, keeps_graph = self._flights[backward_number()]
            submit_waiting(backward_number())
            found = flight.result() if isinstance(flight, Future) else flight
        del self._flights[backward_number()]
        if not keeps_graph:
            self.ran, self.inputs, self._flights = None, (), {}
        return list(found)

    def stop(self, number: int, grace_ms: int | None) -> None:
        """Nobody will ask for what the backward with that number has begun here."""
        flight, _ = self._flights.pop(number, (None, False))
        if isinstance(flight, Derived):
            flight.stop(grace_ms)

    def stop_all(self, grace_ms: int) -> None:
        """``stop`` for every backward: none is running."""
        for number in [*self._flights]:
            self.stop(number, grace_ms)

    def _changed(self) -> list[int]:
        """The numbers of the inputs that were changed in place since the call."""
        ran, library = self._parts()
        return [
            number
            for number, (one, version) in enumerate(zip(self.inputs, self.versions, strict=True))
            if library.version(one) != version and not ran.call.inputs[number].is_buffer
        ]

    def _arrays(self, changed: Sequence[int]) -> list[Array | None]:
        """The inputs as they were at the call, None where that is gone."""
        ran, library = self._parts()
        return [
            None if number in changed and library.is_live(array) else array
            for number, array in enumerate(ran.arrays)
        ]

    def _leaf(self, number: int, array: Array | None) -> Any:
        ran, library = self._parts()
        if array is None:
            raise gone(ran.call, number, _CHANGED_SINCE)
        return library.leaf(ran.call.inputs[number], array)

    def _parts(self) -> tuple[Ran, ArrayLibrary]:
        if self.ran is None or self._library is None:
            raise RuntimeError(
                "Trying to backward through the graph a second time (or directly access saved "
                "tensors after they have already been freed). Specify retain_graph=True if you "
                "need to backward through the graph a second time"
            )
        return self.ran, self._library

    def _gradients(self, grads: Sequence[torch.Tensor | None]) -> Any:
        """The gradient of each input, or the Future of that."""
        ran, library = self._parts()
        changed = self._changed()
        given = [(n, one) for n, one in zip(ran.wanted, grads, strict=True) if one is not None]
        task = Derivative(
            ran.call,
            ran.digest,
            tuple([number for number, _ in given]),
            tuple([library.kind(one, False, "")._replace(requires_grad=False) for _, one in given]),
            tuple([one.requires_grad for one in self.inputs]),
            tuple(changed),
            library.modes(),
        )
        is_here = ran.lifetime.slot == IN_CLIENT or placing.mode() == "local"
        if is_here or is_serving_thread() or are_batched(grads):
            return self._here(task, [one for _, one in given])
        arrays = [library.array(one, False) for _, one in given]
        return self._submitted(task, [*self._arrays(changed), *arrays])

    def _here(self, task: Derivative, grads: list[torch.Tensor]) -> list[torch.Tensor | None]:

        def inputs() -> list[Any]:
            return [self._leaf(*one) for one in enumerate(self._arrays(task.changed))]

        branch = differentiate(task, inputs, grads)
        return gradients_by_number(branch.library, branch.result, branch.outputs, len(self.inputs))

    def _submitted(self, task: Derivative, arrays: list[Array | None]) -> Future[Any]:
        ran, library = self._parts()
        expected = sum(
            [a.nbytes + _PADDING for a, n in zip(ran.arrays, task.needs, strict=True) if n]
        )
        future = Derived()

        def end(answered: Answered | BaseException) -> None:
            if isinstance(answered, BaseException):
                future.set_exception(answered)
                return
            answer, data, _ = answered
            try:
                found = [library.opened(told, data) for told in answer.outputs]
                count = len(self.inputs)
                future.set_result(gradients_by_number(library, answer.result, found, count))
            except BaseException as error:
                future.set_exception(error)

        together = DerivativeTask.of(backward_number(), ran.lifetime)
        future.stop = together.stop
        future.set_running_or_notify_cancel()
        self._is_under_way(future)
        together.add(Request(task, arrays, expected, ran.lifetime.slot), end)
        return future

    def _recorded_gradients(
        self, grads: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """The same with a history (``create_graph``): the branch is made again on the caller's own
        tensors."""
        ran, library = self._parts()
        changed = self._changed()
        inputs = [
            self._leaf(number, array)
            if kind.is_buffer or number in changed or not own.requires_grad
            else library.behind(own, kind)
            for number, (own, kind, array) in enumerate(
                zip(self.inputs, ran.call.inputs, self._arrays(changed), strict=True)
            )
        ]
        branch = made_again(ran.call, inputs, ran.digest, is_copy=False)
        if changed:
            require_unsaved(ran.call, branch, changed)
        given: list[torch.Tensor | None] = [None] * ran.output_count
        for number, grad in zip(ran.wanted, grads, strict=True):
            given[number] = grad
        needs = [one.requires_grad for one in inputs]
        return branch.differentiate(given, needs, create_graph=True)


class EndBranch(torch.autograd.Function):
    """Behind a branch: gives its inputs their gradients."""

    @staticmethod
    def forward(ctx: Any, branch: ForkedBranch, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.branch = branch
        return torch.empty(_TOKEN_SHAPE)

    @staticmethod
    def backward(ctx: Any, _: Any) -> tuple[Any, ...]:
        branch: ForkedBranch = ctx.branch
        gradients = branch.end()
        return None, *[gradients[number] for number in branch.needing]


class BeginBranch(torch.autograd.Function):
    """Before a branch's outputs: takes their gradients."""

    @staticmethod
    def forward(
        ctx: Any, branch: ForkedBranch, token: torch.Tensor, outputs: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        ctx.branch = branch
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        ctx.saved_tensors  # noqa: B018  (torch's error for a second backward)
        ctx.branch.begin(grads)
        return None, torch.empty(_TOKEN_SHAPE), None


# ---------------------------------------------------------------------- private names of torch

#: Whether Nodes can be given another place in the engine's queue. Without that the backward of
#: branches that are called one after another is right, but one after another, too.
HAS_NUMBERS = all(
    hasattr(torch._C._FunctionBase, name) for name in ("_sequence_nr", "_set_sequence_nr")
)
_current_number = getattr(torch._C, "_current_graph_task_id", None)
_is_batched = getattr(torch._C._functorch, "is_legacy_batchedtensor", None)
_current_keep = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)


def backward_number() -> int:
    """The number of the backward that runs on this thread."""
    return 0 if _current_number is None else int(_current_number())


def are_batched(grads: Sequence[torch.Tensor | None]) -> bool:
    """Whether a backward has many gradients in one tensor (``is_grads_batched``)."""
    return _is_batched is not None and any(one is not None and _is_batched(one) for one in grads)


def _keeps_graph() -> bool:
    """Whether the backward that runs on this thread keeps its graph."""
    return _current_keep is None or bool(_current_keep())
