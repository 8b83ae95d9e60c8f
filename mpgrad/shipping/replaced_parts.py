"""ReplacedParts: what user code can replace at run time although no name of its own changes.

These are builtins, methods of Tensor, members of Enums, parts of
partials, and names of functions.
"""

from __future__ import annotations

import builtins
import functools
import types
from collections.abc import Iterable
from enum import Enum
from typing import Any

from mpgrad.autograd.function import Function
from mpgrad.shipping.constants import MISSING, is_constant
from mpgrad.shipping.findings import Fields, Survey, attribute_count
from mpgrad.shipping.installed_state import is_replaced
from mpgrad.shipping.process_state import (
    CHANGING_BUILTINS,
    DYNAMIC_BUILTINS,
    NAMES_AND_WORDS,
    is_own_builtin,
)
from mpgrad.shipping.remedies import Remedy
from mpgrad.tensors.tensor import Tensor


class ReplacedParts:
    """Part of a survey; what is found goes to ``found``, and is compared before each backward."""

    def __init__(self, found: Survey) -> None:
        self._found = found

    def builtin(self, name: str, where: str) -> None:
        """Code at ``where`` reads a name that its module does not have."""
        value = vars(builtins).get(name, MISSING)
        self._found.bindings.append((vars(builtins), name, value))
        if name in DYNAMIC_BUILTINS and value is not MISSING:
            remedy = Remedy.CHANGES if name in CHANGING_BUILTINS else Remedy.OF_PROCESS
            self._found.add(f"{where} calls {name}(), whose effect cannot be foreseen", remedy)
        elif not is_own_builtin(name, value):
            self._found.add(f"{where} reads the builtin `{name}`, which was put there at run time")

    def names_of_ours(self, names: Iterable[str]) -> None:
        """Code looks ``names`` up on tensors, Functions, or objects that could not be followed."""
        for cls in (Tensor, Function):
            self._found.classes.append((cls, cls.__bases__, attribute_count(cls)))
            for name in sorted(names):
                if (value := vars(cls).get(name)) is not None:
                    self._found.bindings.append((vars(cls), name, value))
                    is_new = is_constant(value) and name not in cls.__annotations__
                    if is_replaced(cls, name, value) or (is_new and not name.startswith("__")):
                        self._found.add(f"{cls.__name__}.{name} was replaced here")

    def name_of(self, value: Any, attribute: str) -> None:
        """Code reads ``value.__name__`` or its like."""
        if attribute in NAMES_AND_WORDS and isinstance(value, types.FunctionType | type):
            fields = Fields(value, (attribute,))
            self._found.bindings.append((fields, attribute, fields.get(attribute, MISSING)))

    def parts_of_partial(self, value: functools.partial[Any], label: str) -> None:
        """Code reads a partial, which ``__setstate__`` changes."""
        if vars(value) or type(value) is not functools.partial:
            self._found.add(f"{label}, a partial with attributes, which can change")
        for name in ("func", "args"):
            self._found.bindings.append((Fields(value, (name,)), name, getattr(value, name)))
        self._found.bindings += [(value.keywords, *item) for item in value.keywords.items()]

    def members_of(self, cls: type[Enum]) -> None:
        """Code reads an Enum."""
        for member in cls._member_map_.values():
            for name in ("_name_", "_value_"):
                self._found.bindings.append((vars(member), name, vars(member)[name]))
