"""Calls as messages: a BranchCall and its inputs as a CallRule, and back."""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from mpgrad.calls.call import BranchCall, Derivative, InputKind, Item
from mpgrad.wire.captured_state import CapturedState
from mpgrad.wire.code_pickles import dumps
from mpgrad.wire.packed_texts import pack_text, unpack_text
from mpgrad.wire.programs import CallItem, CallRule, DerivativeRule, PackedArray

Array: TypeAlias = np.ndarray[Any, Any]

#: The descriptions of inputs that are kept, encoded and decoded.
KINDS_MAX = 4096


def rule_of(
    call: BranchCall,
    inputs: Sequence[Array | None],
    pack: Callable[[Array], PackedArray],
    *,
    runs_now: bool = False,
) -> CallRule:
    """The message of ``call``; ``pack`` makes references to arrays.

    Args:
        call, inputs, pack: see there.
        runs_now: whether its task has the captured state of the call.
    """
    captured = None if runs_now else call.captured
    return CallRule(
        call.number,
        pack_text(call.name),
        pack(call.code),
        tuple(map(pack, call.code_buffers)),
        tuple(
            [CallItem(one.data, tuple(map(pack, one.buffers)), one.number) for one in call.items]
        ),
        _encoded(call.inputs),
        tuple([None if array is None else pack(array) for array in inputs]),
        call.is_sum,
        call.seed,
        call.modes,
        call.library,
        None if call.watched is None else tuple(sorted(call.watched)),
        b"" if captured is None else captured.data,
        {} if captured is None else captured.numpy_errors,
        call.seeks_lost,
        call.retries,
    )


def derivative_rule_of(
    task: Derivative, inputs: Sequence[Array | None], pack: Callable[[Array], PackedArray]
) -> DerivativeRule:
    """The message of ``task``, whose gradients follow the inputs of its call."""
    count = len(task.call.inputs)
    return DerivativeRule(
        rule_of(task.call, inputs[:count], pack),
        task.digest,
        task.wanted,
        _encoded(task.kinds),
        tuple([pack(array) for array in inputs[count:] if array is not None]),
        task.needs,
        task.changed,
        task.modes,
    )


def derivative_of(rule: DerivativeRule, unpack: Callable[[PackedArray], Array]) -> Derivative:
    """The task in a message, without arrays."""
    return Derivative(
        call_of(rule.call, unpack),
        rule.digest,
        rule.wanted,
        _decoded(rule.kinds),
        rule.needs,
        rule.changed,
        rule.modes,
    )


def call_of(rule: CallRule, unpack: Callable[[PackedArray], Array]) -> BranchCall:
    """The call in a message, without the arrays of its inputs."""
    return BranchCall(
        rule.number,
        unpack_text(rule.name),
        unpack(rule.code),
        tuple(map(unpack, rule.code_buffers)),
        tuple([Item(one.data, tuple(map(unpack, one.buffers)), one.number) for one in rule.items]),
        _decoded(rule.kinds),
        rule.is_sum,
        rule.seed,
        rule.modes,
        rule.library,
        CapturedState(rule.captured_state, "", rule.numpy_errors) if rule.captured_state else None,
        None if rule.watched is None else frozenset(rule.watched),
        seeks_lost=rule.seeks_lost,
        retries=rule.retries,
    )


def _encoded(kinds: tuple[InputKind, ...]) -> bytes:
    if any(kind.attributes for kind in kinds):
        return dumps(kinds)  # a dictionary is no key
    return _encoded_plain(tuple([kind._replace(attributes=None) for kind in kinds]))


@functools.lru_cache(KINDS_MAX)
def _encoded_plain(kinds: tuple[InputKind, ...]) -> bytes:
    return dumps(kinds)


@functools.lru_cache(KINDS_MAX)
def _decoded(data: bytes) -> tuple[InputKind, ...]:
    found: tuple[InputKind, ...] = pickle.load(io.BytesIO(data))
    return found
