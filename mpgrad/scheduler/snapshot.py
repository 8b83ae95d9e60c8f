"""copy_of(): a copy of a core's tables that later events do not change.

Tables consist of a few classes, lists, dicts and sets; everything else in them is immutable and is
shared with the copy. So a copy of a large graph costs a few machine words per task.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Any, TypeVar

from mpgrad.errors import InvariantViolated
from mpgrad.scheduler.coordinator_tables import CoordinatorTables
from mpgrad.scheduler.graph_task import GraphTask
from mpgrad.scheduler.input_buffer import MISSING, InputBuffer
from mpgrad.scheduler.lease_table import LeaseTable
from mpgrad.scheduler.membership import MemberRecord, Membership
from mpgrad.scheduler.ready_queue import ReadyQueue

T = TypeVar("T")

#: Classes whose fields are tables. None of their instances is in two places.
TABLE_CLASSES: tuple[type[Any], ...] = (
    CoordinatorTables,
    Membership,
    MemberRecord,
    GraphTask,
    InputBuffer,
    LeaseTable,
    ReadyQueue,
)
#: Fields that a copy leaves out: what belongs to the process, and what follows from other fields.
OUTSIDE: dict[type[Any], tuple[str, ...]] = {
    LeaseTable: ("_allocator",),
    Membership: ("_workers",),
}

_CONTAINERS = (list, dict, set, Counter)
_MUTABLE = frozenset({*TABLE_CLASSES, *_CONTAINERS})
_ATOMS = frozenset({type(None), bool, int, float, str, bytes, type(MISSING)})


def copy_of(value: T) -> T:
    """``value`` as it is now.

    Raises:
        InvariantViolated: it holds something of a class that is not named here.
    """
    copied: T = _copy(value)
    return copied


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind is list:
        return [_copy(item) for item in value] if _has_mutable(value) else value.copy()
    if kind is dict or kind is Counter:
        if not _has_mutable(value.values()):
            return value.copy()
        return kind({key: _copy(item) for key, item in value.items()})
    if kind is set:
        return value.copy()
    if kind in TABLE_CLASSES:
        copy = object.__new__(kind)
        for name in fields_of(value):
            is_outside = name in OUTSIDE.get(kind, ())
            setattr(copy, name, None if is_outside else _copy(getattr(value, name)))
        return copy
    if kind in _ATOMS or isinstance(value, tuple | Enum):
        return value
    raise InvariantViolated(f"a table holds a {kind.__name__}, which a snapshot cannot copy")


def _has_mutable(values: Any) -> bool:
    """Whether some item needs a copy of its own; at the speed of C for millions of them."""
    return not _MUTABLE.isdisjoint(map(type, values))


def fields_of(table: Any) -> list[str]:
    """The names of a table's fields."""
    slots = getattr(type(table), "__slots__", None)
    return list(vars(table)) if slots is None else list(slots)


def size_of(value: Any) -> int:
    """Roughly how many entries a snapshot has: what copying it costs."""
    kind = type(value)
    if kind in TABLE_CLASSES:
        return sum(size_of(getattr(value, name)) for name in fields_of(value))
    if kind not in _CONTAINERS:
        return 1
    values = value.values() if isinstance(value, dict) else value
    return sum(size_of(item) for item in values) if _has_mutable(values) else len(value)
