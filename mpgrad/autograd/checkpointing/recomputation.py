"""Checkpointing without a nested backward: saved tensors are computed again when needed.

The first call of the function is recorded as usual, but each saved tensor is packed into an empty
:class:`Slot`. The first unpack of a backward calls the function again, under hooks that put its
saved tensors into the slots in the same order. The graph of the second call is dropped.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn, TypeAlias

from mpgrad.autograd.running.running_backward import current_graph_task_id
from mpgrad.base.thread_state import PerThread
from mpgrad.ops.generators import fork_rng, get_rng_state, set_rng_state
from mpgrad.recording.graph.grad_modes import enable_grad, is_grad_enabled
from mpgrad.recording.tensors.saved_tensor import SavedTensor
from mpgrad.recording.tensors.saved_tensors_hooks import saved_tensors_hooks
from mpgrad.recording.tensors.tensor import Tensor

#: The properties of a tensor that must be the same in both calls.
Metadata: TypeAlias = Callable[[Tensor], Any]

METADATA: dict[str, Metadata] = {
    "default": lambda tensor: {
        "shape": tensor.shape,
        "dtype": tensor.dtype,
        "device": tensor.device,
    },
    "none": lambda tensor: None,
}

_TIP = (
    "\nTip: pass debug=True to mpgrad.utils.checkpoint.checkpoint(...), or wrap the code in `with "
    "mpgrad.utils.checkpoint.set_checkpoint_debug_enabled(True):`, to see all operators of both."
)

#: Numbers for uses outside a backward of the engine: a read of ``grad_fn._saved_...``, a group.
_other_ids = itertools.count(-2, -1)


class CheckpointError(RuntimeError):
    """The second call of a checkpointed function did not save the same tensors as the first."""


class _Complete(BaseException):
    """No tensor is missing. It is not an Exception, which the function might catch."""


class GraphExecGroup:
    """Inside, several backwards call each checkpointed function at most once more in total.

    They must not need the same saved tensor, not even with ``retain_graph=True``. Only checkpoints
    with ``use_reentrant=False`` take part.
    """

    def __init__(self) -> None:
        self._id = next(_other_ids)

    def __enter__(self) -> GraphExecGroup:
        """
        Raises:
            RuntimeError: this thread is already inside a group.
        """
        if _thread.group is not None:
            raise RuntimeError("GraphExecGroup contexts cannot be nested.")
        _thread.group = self
        return self

    def __exit__(self, *exc: object) -> None:
        _thread.group = None


class _Thread(PerThread):
    group: GraphExecGroup | None = None


_thread = _Thread()


def _current_id() -> int:
    """The user of the next unpack: one second call serves all its unpacks."""
    if _thread.group is not None:
        return _thread.group._id
    found = current_graph_task_id()
    return next(_other_ids) if found < 0 else found


class Slot:
    """One saved tensor of the first call: by backward, its values; None once used."""

    __slots__ = ("__weakref__", "values")

    def __init__(self) -> None:
        self.values: dict[int, Tensor | None] = {}


class Region:
    """One checkpointed call.

    Args:
        function: the function to call.
        kwargs: its keyword arguments.
        context: in force during the second call.
        preserve_rng_state: draw the same random numbers in both calls.
        early_stop: end the second call as soon as no tensor is missing.
        metadata: the properties that are compared.
        explain: raises a more detailed error when the calls differ.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        kwargs: dict[str, Any],
        context: AbstractContextManager[Any],
        *,
        preserve_rng_state: bool,
        early_stop: bool,
        metadata: Metadata,
        explain: Callable[[CheckpointError], NoReturn] | None,
    ) -> None:
        self._function, self._kwargs, self._context = function, kwargs, context
        self._rng_state = get_rng_state() if preserve_rng_state else None
        self._early_stop, self._metadata, self._explain = early_stop, metadata, explain
        self._args: tuple[Any, ...] = ()
        #: Weak references: a slot lives as long as the Node that saved it.
        self._slots: list[weakref.ref[Slot]] = []
        self._expected: list[Any] = []
        #: The number of tensors that the second call has saved, by backward.
        self._saved: dict[int, int] = {}
        self._is_called = False
        self._ignores_surplus = False

    # ------------------------------------------------------------------ the first call

    def call(self, args: Sequence[Any]) -> Any:
        """Call the function and pack its saved tensors."""
        self._args = tuple(
            SavedTensor(value, is_output=False) if isinstance(value, Tensor) else value
            for value in args
        )
        with saved_tensors_hooks(self._pack, self._unpack):
            result = self._function(*args, **self._kwargs)
        self._is_called = True
        return result

    def call_unrecorded(self, args: Sequence[Any]) -> Any:
        """Call the function without recording: it saves no tensors."""
        return self._function(*args, **self._kwargs)

    def _pack(self, tensor: Tensor) -> Slot:
        slot = Slot()
        self._slots.append(weakref.ref(slot))
        self._expected.append(self._metadata(tensor))
        return slot

    # ------------------------------------------------------------------ backward

    def _unpack(self, slot: Slot) -> Tensor:
        try:
            return self._value(slot, _current_id())
        except CheckpointError as error:
            if self._explain is not None:
                self._explain(error)
            raise

    def _value(self, slot: Slot, backward: int) -> Tensor:
        if backward not in self._saved:
            self._call_again(backward)
            self._check(backward)
        if backward not in slot.values:
            raise CheckpointError(
                "mpgrad.utils.checkpoint: A different number of tensors was saved during the "
                f"original forward and recomputation, which did not come to this one.{_TIP}"
            )
        value = slot.values[backward]
        if value is None:
            raise CheckpointError(_used_twice())
        # Removed: nobody else needs it, and the Node is about to use it.
        slot.values[backward] = None
        return value

    def _call_again(self, backward: int) -> None:
        args = [
            value.tensor(None) if isinstance(value, SavedTensor) else value for value in self._args
        ]
        self._saved[backward] = 0
        fill = saved_tensors_hooks(lambda tensor: self._fill(tensor, backward), _as_it_is)
        try:
            with fill, enable_grad(), fork_rng(self._rng_state is not None):
                if self._rng_state is not None:
                    set_rng_state(self._rng_state)
                with self._context:
                    self._function(*args, **self._kwargs)
        except _Complete:
            pass
        except BaseException:
            del self._saved[backward]
            raise

    def _fill(self, tensor: Tensor, backward: int) -> Tensor:
        """Pack hook of the second call: put its tensor into the slot of the first call."""
        number = self._saved[backward]
        self._saved[backward] = number + 1
        # Kept without its history, which would keep the whole graph of the second call.
        value = tensor.detach() if tensor.requires_grad else tensor
        if number >= len(self._slots):
            if not self._is_called:
                # backward() inside the function: the first call has not saved all tensors yet.
                self._ignores_surplus = True
                return value
            raise CheckpointError(
                "mpgrad.utils.checkpoint: trying to save more tensors during recomputation than "
                f"during the original forward pass.{_TIP}"
            )
        slot = self._slots[number]()
        if slot is not None:  # else an earlier backward has freed its Node
            slot.values[backward] = value
        if self._early_stop and number + 1 == len(self._slots):
            raise _Complete
        return value

    def _check(self, backward: int) -> None:
        """Raise CheckpointError if the second call saved other tensors than the first."""
        if self._ignores_surplus:
            return
        found = self._saved[backward]
        if found != len(self._slots):
            raise CheckpointError(
                "mpgrad.utils.checkpoint: A different number of tensors was saved during the "
                f"original forward and recomputation: {len(self._slots)} during forward, {found} "
                f"during recomputation.{_TIP}"
            )
        differences = []
        for number, (reference, expected) in enumerate(
            zip(self._slots, self._expected, strict=True)
        ):
            slot = reference()
            value = None if slot is None else slot.values.get(backward)
            if value is not None and self._metadata(value) != expected:
                differences.append(
                    f"tensor at position {number}:\nsaved metadata: {expected}\n"
                    f"recomputed metadata: {self._metadata(value)}"
                )
        if differences:
            raise CheckpointError(
                "mpgrad.utils.checkpoint: Recomputed values for the following tensors have "
                "different metadata than during the forward pass.\n" + "\n".join(differences) + _TIP
            )


def _as_it_is(tensor: Tensor) -> Tensor:
    """Unpack hook of the second call, for a backward inside the function."""
    return tensor


def _used_twice() -> str:
    group = (
        "Two backwards that need the same saved tensor are not allowed inside a GraphExecGroup. "
        if _thread.group is not None
        else ""
    )
    return (
        "mpgrad.utils.checkpoint: Unpack is being triggered for a tensor that was already unpacked "
        f"once. {group}A Function inside a checkpoint may read ctx.saved_tensors only once."
    )


def run_checkpointed(
    region: Region, args: Sequence[Any], context: AbstractContextManager[Any]
) -> Any:
    """Call the function of ``region`` for the first time, in ``context``.

    Raises:
        RuntimeError: ``context`` suppressed an exception of the function.
    """
    if not is_grad_enabled():
        return region.call_unrecorded(args)
    with context:
        return region.call(args)
    raise RuntimeError(
        "mpgrad.utils.checkpoint: the forward context provided by context_fn suppressed an "
        "exception raised during the checkpointed forward. This is not supported because checkpoint"
        " cannot return a value for a failed forward."
    )
