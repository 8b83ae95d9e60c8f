"""Selective checkpointing: a policy decides which operators' results are kept."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpgrad.recording.dispatch.operator_mode import OperatorMode
from mpgrad.recording.graph.registry import OPERATORS, Operator
from mpgrad.recording.tensors.storage import VersionCounter
from mpgrad.recording.tensors.tensor import Tensor


class CheckpointPolicy(enum.Enum):
    """What becomes of an operator's result: kept, or computed again in backward.

    ``MUST`` and ``PREFER`` mean the same here, and what is to be offloaded to the CPU is kept: it
    is there already.
    """

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_CPU_OFFLOAD = 4
    PREFER_CPU_OFFLOAD = 5


_KEEPING = (
    CheckpointPolicy.MUST_SAVE,
    CheckpointPolicy.PREFER_SAVE,
    CheckpointPolicy.MUST_CPU_OFFLOAD,
    CheckpointPolicy.PREFER_CPU_OFFLOAD,
)


class SelectiveCheckpointContext:
    """The first argument of a policy.

    Attributes:
        is_recompute: always False: a policy is called in the first call only.
        op_output: the result of the operator.
    """

    def __init__(self, *, is_recompute: bool, op_output: Any = None) -> None:
        self.is_recompute = is_recompute
        self.op_output = op_output


#: ``policy(ctx, operator, *inputs, **attributes)``; True means MUST_SAVE, False PREFER_RECOMPUTE.
Policy: TypeAlias = Callable[..., CheckpointPolicy | bool]


class _Output(NamedTuple):
    """One kept array, and its version at that time."""

    array: np.ndarray[Any, Any]
    counter: VersionCounter
    version: int


class _Kept(NamedTuple):
    """The results of one call of an operator."""

    outputs: tuple[_Output, ...]
    is_tuple: bool


class _NotKept(enum.Enum):
    """Why the result of a call is missing."""

    RUNS_AGAIN = "the policy does not keep it"
    USED = "it has been used"


#: By operator name, the kept results of each of its calls, in order.
_Storage: TypeAlias = defaultdict[str, list[_Kept | _NotKept]]

_NOT_THE_SAME = (
    "This can happen if the operations in the checkpointed region are nondeterministic or depend "
    "on global state that changed between forward and backward."
)


class _Keep(OperatorMode):
    """First call: asks the policy and keeps results."""

    def __init__(self, policy: Policy, storage: _Storage) -> None:
        self._policy, self._storage = policy, storage

    def done(
        self,
        operator: Operator,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        outputs: Sequence[Tensor],
    ) -> None:
        is_tuple = operator.outputs != 1 or len(outputs) > 1
        given = tuple(outputs) if is_tuple else outputs[0]
        ctx = SelectiveCheckpointContext(is_recompute=False, op_output=given)
        says = self._policy(ctx, operator, *inputs, **attributes)
        if says is True or says in _KEEPING:
            kept = (
                _Output(t._array, t._version_counter, t._version_counter.value) for t in outputs
            )
            self._storage[operator.name].append(_Kept(tuple(kept), is_tuple))
        else:
            self._storage[operator.name].append(_NotKept.RUNS_AGAIN)


class _Reuse(OperatorMode):
    """Second call: returns kept results instead of running the operator."""

    def __init__(self, storage: _Storage, *, allow_mutation: bool) -> None:
        self._storage, self._allow_mutation = storage, allow_mutation
        self._calls: defaultdict[str, int] = defaultdict(int)

    def __enter__(self) -> OperatorMode:
        self._calls.clear()
        return super().__enter__()

    def forward(
        self,
        operator: Operator,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        run: Callable[[], Any],
    ) -> Any:
        """
        Raises:
            RuntimeError: the first call did not call this operator (as often), its result was
                changed in place, or it has been used already.
        """
        number = self._calls[operator.name]
        self._calls[operator.name] = number + 1
        entries = self._storage[operator.name]
        if number >= len(entries):
            raise RuntimeError(
                f"{operator.name} invocation index {number} encountered during backward but not "
                f"found in storage. {_NOT_THE_SAME}"
            )
        entry = entries[number]
        if entry is _NotKept.RUNS_AGAIN:
            return run()
        if entry is _NotKept.USED:
            raise RuntimeError(
                "Trying to backward an extra time. You are only allowed to backward once on any "
                "region computed under selective activation checkpoint."
            )
        entries[number] = _NotKept.USED
        if not self._allow_mutation and any(o.counter.value != o.version for o in entry.outputs):
            raise RuntimeError(
                "Tensor cached during selective activation checkpoint has been mutated: the result "
                f"of {operator.name}"
            )
        arrays = tuple(output.array for output in entry.outputs)
        return arrays if entry.is_tuple else arrays[0]


def create_selective_checkpoint_contexts(
    policy_fn_or_list: Policy | list[Any], allow_cache_entry_mutation: bool = False
) -> tuple[OperatorMode, OperatorMode]:
    """The two contexts with which ``checkpoint()`` keeps the results of some operators.

    Example::

        keep = functools.partial(create_selective_checkpoint_contexts, ["matmul"])
        y = checkpoint(function, x, use_reentrant=False, context_fn=keep)

    Args:
        policy_fn_or_list: operators (or their names) whose results are kept, or a function
            ``policy(ctx, operator, *inputs, **attributes)`` that returns a
            :class:`CheckpointPolicy`.
        allow_cache_entry_mutation: do not check that kept results were not changed in place.

    Raises:
        TypeError: it is neither a list nor callable.
        ValueError: there is no such operator.
    """
    if isinstance(policy_fn_or_list, list):
        policy = _policy_of_list(policy_fn_or_list)
    elif callable(policy_fn_or_list):
        policy = policy_fn_or_list
    else:
        raise TypeError("policy_fn_or_list must be either a function or a list of ops.")
    storage: _Storage = defaultdict(list)
    return _Keep(policy, storage), _Reuse(storage, allow_mutation=allow_cache_entry_mutation)


def _policy_of_list(operators: list[Any]) -> Policy:
    names = set()
    for operator in operators:
        name = operator.name if isinstance(operator, Operator) else operator
        if not isinstance(name, str) or name not in OPERATORS:
            raise ValueError(
                "Expected op in `op_list` to be an operator or the name of one, but got: "
                f"{operator!r} of type {type(operator).__name__}"
            )
        names.add(name)
    return lambda ctx, operator, *inputs, **attributes: operator.name in names
