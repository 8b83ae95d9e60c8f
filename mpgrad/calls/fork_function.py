"""Fork: the Function whose Node stands for a branch in the graph of the caller.

Its forward has run elsewhere. Its backward differentiates the branch: where that was recorded if
it can, and otherwise it is made again.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from mpgrad.autograd.function import Function
from mpgrad.autograd.function_nodes.context import FunctionContext, running_backwards
from mpgrad.autograd.function_nodes.function_node import FunctionNode
from mpgrad.calls.array_library import library_of
from mpgrad.calls.branch import Branch
from mpgrad.calls.call import FAILED, BranchCall, Ran
from mpgrad.calls.kept_arrays import Watched, kept_arrays
from mpgrad.calls.kept_branches import BRANCHES
from mpgrad.calls.made_again import made_again
from mpgrad.calls.map_time import MapTime
from mpgrad.recording.graph.grad_modes import is_grad_enabled
from mpgrad.recording.tensors.tensor import Tensor

Array: TypeAlias = np.ndarray[Any, Any]

#: Where a Lifetime tells of its end: slot, number.
Ended: TypeAlias = deque[tuple[int, int]]

#: The value of ``Lifetime.slot`` for a branch of the client.
IN_CLIENT = -1

_GONE = (
    "the branch of {name} has to be made again to be differentiated, because {why}, but its "
    "argument {argument} has changed since. Change it after backward(), or pass a .clone() of it"
)

_ENDED = (
    "Trying to backward through the graph a second time: all results of one call of {name} are one "
    "Node, which a backward has let go. Specify retain_graph=True for the first backward, or add "
    "the results up and call backward once"
)


class Lifetime:
    """Lives as long as a branch may be differentiated, and then says so.

    Attributes:
        number: of the branch.
        slot: of the worker that has recorded it.
        task: that has recorded it: the number of its first call, and how many it has run.
        held: what must live as long: the arrays that its worker reads.
        map_time: of its map, where that is compared.
    """

    __slots__ = ("_ended", "held", "map_time", "number", "slot", "task")

    def __init__(
        self,
        number: int,
        slot: int,
        ended: Ended | None,
        held: Any = None,
        task: tuple[int, int] | None = None,
    ) -> None:
        self.number, self.slot, self._ended, self.held = number, slot, ended, held
        self.task = task or (number, 1)
        self.map_time: MapTime | None = None

    def __del__(self) -> None:
        if self._ended is None:
            BRANCHES.drop(self.number)
        else:
            self._ended.append((self.slot, self.number))

    def __reduce__(self) -> Any:
        return _nothing, ()  # a worker ends no branch


def _nothing() -> None:
    return None


class Sources:
    """The inputs that a derivative of a branch's gradient may be asked for.

    Args:
        inputs: of the call.
    """

    __slots__ = ("_found",)

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._found = {
            number: (one, one._version_counter.value, one._array)
            for number, one in enumerate(inputs)
            if one.requires_grad
        }

    def unchanged(self, call: BranchCall) -> dict[int, Tensor]:
        """These inputs, by number.

        Raises:
            RuntimeError: one of them has changed since the call, or has other memory.
        """
        for number, (one, version, array) in self._found.items():
            if one._version_counter.value != version or one._array is not array:
                raise gone(call, number, "create_graph records it anew")
        return {number: one for number, (one, _, _) in self._found.items()}

    def __reduce__(self) -> Any:
        return Sources, ((),)  # a worker records no gradient


class Fork(Function):
    """One branch as a Node: ``Fork.apply(ran, *inputs)`` gives ``ran.outputs`` a history."""

    #: A promise that is kept: what it reads travels with it.
    run_on: ClassVar[str | None] = "worker"
    _is_branch: ClassVar[bool] = True

    @staticmethod
    def forward(ctx: FunctionContext, ran: Ran, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Declare what the branch has saved; the outputs are there."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*[inputs[number] for number in ran.saved])
        ctx.call, ctx.lifetime, ctx.digest = ran.call, ran.lifetime, ran.digest
        ctx.wanted, ctx.output_count = ran.wanted, ran.output_count
        ctx.kept = kept_arrays(ran, inputs)
        ctx.sources = Sources(inputs)
        return ran.outputs

    @staticmethod
    def backward(ctx: FunctionContext, *grads: Tensor | None) -> tuple[Any, ...]:
        """The gradient of each input."""
        if (flight := vars(ctx).pop("flight", None)) is not None:
            return None, *flight()  # another host differentiates it
        _require_kept(ctx)
        ctx.saved_tensors  # noqa: B018  (raises if one of them has changed, or has been freed)
        all_grads: list[Tensor | None] = [None] * ctx.output_count
        for number, grad in zip(ctx.wanted, grads, strict=True):
            all_grads[number] = grad
        needs = running_backwards()[-1][1][1:]
        with ctx.call.noted_in_backward():
            if is_grad_enabled():
                branch = _connected(ctx)
                return None, *branch.differentiate(all_grads, needs, create_graph=True)
            branch = BRANCHES.get(ctx.call.number) or _again(ctx)
            return None, *branch.differentiate(all_grads, needs)

    @staticmethod
    def _on_last_run(ctx: FunctionContext) -> None:
        ctx.lifetime = ctx.sources = ctx.kept = None  # the Node has run, and will not run again


def holder_of(node: Any) -> int:
    """The slot of the worker that has recorded the branch of ``node``; IN_CLIENT: this process has,
    or it is no branch."""
    if not isinstance(node, FunctionNode) or not issubclass(node.function, Fork):
        return IN_CLIENT
    lifetime = node.ctx.lifetime
    return IN_CLIENT if lifetime is None else int(lifetime.slot)


def recorded_together(nodes: Sequence[Any]) -> tuple[int, ...]:
    """For each of these Nodes a number, equal for branches that one task of a worker has recorded;
    -1: it is no branch of a worker. Empty: none is."""
    if not _Used.is_true:
        return ()
    numbers: dict[Any, int] = {}
    found = []
    for node in nodes:
        slot, number = holder_of(node), -1
        if slot != IN_CLIENT:
            number = numbers.setdefault((slot, node.ctx.lifetime.task), len(numbers))
        found.append(number)
    return tuple(found) if numbers else ()


def map_times(nodes: Sequence[Any]) -> set[MapTime]:
    """Those of the maps that have recorded some of these Nodes."""
    if not _Used.is_true:
        return set()
    forks = [one for one in nodes if isinstance(one, FunctionNode) and one.function is Fork]
    lifetimes = [fork.ctx.lifetime for fork in forks]
    return {one.map_time for one in lifetimes if one is not None and one.map_time is not None}


def branch_in_words(node: Any) -> str:
    """Whose backward the Node of a branch is, for errors; empty: it is no branch."""
    call = _call_of(node)
    return "" if call is None else call.backward_in_words


def note_failure(node: Any) -> None:
    """The backward of a Node has raised: if that is a branch, the next call is watched."""
    if (call := _call_of(node)) is not None:
        FAILED.add(call.name)


def _call_of(node: Any) -> BranchCall | None:
    if not isinstance(node, FunctionNode) or not issubclass(node.function, Fork):
        return None
    call: BranchCall = node.ctx.call
    return call


def has_branches_in_workers(nodes: Sequence[Any]) -> bool:
    """Whether workers have recorded branches of some of these Nodes."""
    return _Used.is_true and any(holder_of(node) != IN_CLIENT for node in nodes)


def is_here(node: FunctionNode) -> bool:
    """Whether ``node`` stands for a branch that this process has recorded."""
    return issubclass(node.function, Fork) and holder_of(node) == IN_CLIENT


def _require_kept(ctx: FunctionContext) -> None:
    """Check that no backward has let the branch go.

    Raises:
        RuntimeError: one has. Its Node may have saved nothing, so nothing else would say so.
    """
    if ctx.lifetime is None:
        raise RuntimeError(_ENDED.format(name=ctx.call.name))


def _again(ctx: FunctionContext) -> Branch:
    """The branch, made again. It is not kept: nobody would say when it may go."""
    call: BranchCall = ctx.call
    leaf, arrays = library_of(call.library).leaf, _arrays(ctx)
    inputs = [leaf(kind, array) for kind, array in zip(call.inputs, arrays, strict=True)]
    return made_again(call, inputs, ctx.digest)


def _connected(ctx: FunctionContext) -> Branch:
    """The branch, made again on the caller's own tensors, so that it can be differentiated twice
    (``create_graph``)."""
    call: BranchCall = ctx.call
    library, arrays = library_of(call.library), _arrays(ctx)
    own = ctx.sources.unchanged(call)
    inputs = [
        library.behind(own[number], kind)
        if number in own and not kind.is_buffer
        else library.leaf(kind, arrays[number])
        for number, kind in enumerate(call.inputs)
    ]
    return made_again(call, inputs, ctx.digest, is_copy=False)


def _arrays(ctx: FunctionContext) -> list[Array]:
    """The array of each input, as it was at the call."""
    arrays: list[Array] = []
    for number, array in enumerate(map(_now, ctx.kept)):
        if array is None:
            raise gone(ctx.call, number)
        arrays.append(array)
    return arrays


def _now(kept: Any) -> Array | None:
    return kept.get() if isinstance(kept, Watched) else kept


def gone(
    call: BranchCall, number: int, why: str = "its worker has died or had no room for it"
) -> RuntimeError:
    """The error for a branch that cannot be made again, because an input is not as it was."""
    name = call.inputs[number].name or f"number {number}"
    return RuntimeError(_GONE.format(name=call.name, why=why, argument=name))


def arrays_to_send(node: FunctionNode) -> list[Array | None]:
    """The array of each input of a branch, None where it has changed.

    Raises:
        RuntimeError: the branch has saved an input that has changed, or has been freed.
    """
    _require_kept(node.ctx)
    _ = node.portable_context().saved  # raises
    return list(map(_now, node.ctx.kept))


_numbers = itertools.count()


class _Used:
    #: Whether this process has asked for any branch.
    is_true = False


def new_number() -> int:
    """A number that no other branch of this process has."""
    _Used.is_true = True
    return next(_numbers)
