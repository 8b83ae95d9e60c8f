"""UnknownObjects: what user code does with objects that the analysis cannot follow."""

from __future__ import annotations

import types
from collections import Counter, defaultdict, deque
from typing import Any

import numpy as np

from mpgrad.base.hash_seed import fixed_hash_seed
from mpgrad.shipping.code_reads import CodeReads
from mpgrad.shipping.constants import FOR_ORDER
from mpgrad.shipping.findings import Survey, line_of
from mpgrad.shipping.process_state import (
    CHANGING_METHODS,
    OF_ONE_OBJECT,
    SUSPECT_ATTRIBUTES,
)
from mpgrad.shipping.remedies import Remedy, remedy_of_attribute


class UnknownObjects:
    """Part of a survey; what is found goes to ``found``."""

    def __init__(self, found: Survey) -> None:
        self._found = found

    def used_by(self, function: types.FunctionType, reads: CodeReads) -> None:
        """Attributes that are looked up and set, and sets.

        What is set on objects is found after the run, and on functions and classes of the user's.
        """
        self._found.sets_attributes |= bool(reads.stores)
        names = {access.name for access in reads.accesses}
        for _, attribute, line in reads.stores if "type" in names else ():
            text = f"{line_of(function, line)} sets .{attribute} of an object that may be shared"
            self._found.add(text, Remedy.CHANGES)
        for attribute, line in reads.attributes:
            if attribute in SUSPECT_ATTRIBUTES or attribute in OF_ONE_OBJECT:
                text = f"{line_of(function, line)} uses .{attribute} of an unknown object"
                self._found.add(text, remedy_of_attribute(attribute))
        for line in reads.sets:
            self.makes_a_set(f"{line_of(function, line)} makes a set")

    def reads_class(self, cls: type, label: str) -> None:
        """A builtin under a name of the user's, which ``code_reads`` does not recognise."""
        if cls in (set, frozenset):
            self.makes_a_set(f"{label}, which makes a set")

    def makes_a_set(self, label: str) -> None:
        """Code that ``label`` says makes a set, or may make one."""
        if fixed_hash_seed() is None:
            self._found.add(
                f"{label}, whose order of strings and objects differs in each process; {FOR_ORDER}"
            )

    def set_on_ctx(self, function: types.FunctionType, reads: CodeReads) -> list[str]:
        """What a method with a ctx sets on it, in words.

        What code sets on other objects is found after the run.
        """
        own = function.__code__.co_varnames[:1]
        return [
            f"{line_of(function, line)} sets {variable}.{attribute}, where the caller and a later "
            "backward would find it"
            for variable, attribute, line in reads.stores
            if variable in own
        ]

    def called(self, value: Any, path: tuple[str, ...], label: str) -> None:
        """Code looks ``path`` up on ``value``, whose type Python defines: methods that change it
        need no try."""
        names = _CHANGED_BY.get(type(value))
        if names is not None and path[:1] and path[0] in names:
            self._found.add(f"{label}.{path[0]}`, which changes it", Remedy.CHANGES)


_CHANGED_BY: dict[type, frozenset[str]] = dict.fromkeys(
    (list, dict, set, deque, Counter, defaultdict, bytearray, np.ndarray), CHANGING_METHODS
)
