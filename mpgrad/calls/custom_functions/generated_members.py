"""Members of a class that were written by Python or its standard library, not by the user."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

#: Class attributes for the interpreter or for type checkers.
_BOOKKEEPING = (
    "__doc__ __module__ __qualname__ __dict__ __weakref__ __annotations__ __parameters__ "
    "__orig_bases__ __dataclass_fields__ __dataclass_params__ __abstractmethods__ _abc_impl "
    "__firstlineno__ __slotnames__ __static_attributes__ __annotate_func__ __annotations_cache__"
)
IGNORED = frozenset(_BOOKKEEPING.split())
#: Members that namedtuple() and dataclasses write.
OF_NAMEDTUPLE = frozenset(
    {"__new__", "__repr__", "__getnewargs__", "_asdict", "_field_defaults", "_make", "_replace"}
)
_OF_ENUM = (
    "_generate_next_value_ _member_names_ _member_map_ _value2member_map_ _hashable_values_ "
    "_unhashable_values_ _unhashable_values_map_ _member_type_ _value_repr_ _use_args_ "
    "_new_member_ _boundary_ _flag_mask_ _singles_mask_ _all_bits_ _inverted_ __new__ "
    "__new_member__"
)
#: What the standard library keeps in every Enum.
OF_ENUM = frozenset(_OF_ENUM.split())
_OF_DATACLASS = frozenset(
    {"__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__replace__"}
    | {"__lt__", "__le__", "__gt__", "__ge__", "__getstate__", "__setstate__"}
)


def generated_in(name: str, method: Any) -> Iterator[types.FunctionType]:
    """The functions in a dataclass's ``method`` that ``dataclasses`` has written."""
    while name in _OF_DATACLASS and isinstance(method, types.FunctionType):
        if method.__code__.co_filename == "<string>":
            yield method
        method = getattr(method, "__wrapped__", None)


def is_bookkeeping(variable: str, function: types.FunctionType) -> bool:
    """Whether a closure's variable is bookkeeping in a method that ``dataclasses`` has written."""
    if function.__globals__.get("__name__") in ("dataclasses", "reprlib"):
        return variable == "repr_running"
    return function.__code__.co_filename == "<string>" and variable.startswith(
        ("_type_", "__dataclass_type_")
    )
