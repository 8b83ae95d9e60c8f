"""code_reads(): what a code object reads and writes outside itself, found in its bytecode.

The analysis is static: it knows names and attribute paths (``settings.scale``), not the objects
behind them (see ``purity``). It reports what it cannot follow, so that the caller can be careful.
"""

from __future__ import annotations

import dis
import re
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

from mpgrad.calls.custom_functions.process_state import CHANGING_METHODS


class Access(NamedTuple):
    """One use of a variable that is not local.

    Attributes:
        source: ``"global"``, ``"free"`` (a closure's variable) or ``"import"``.
        name: the variable's name, or the module's (leading dots: a relative import).
        path: attributes looked up on it, in order.
        action: ``"load"``; ``"alias"``: only stored in a local variable, whose uses are reported
            with the same source; ``"member"``: the right operand of ``in``; ``"identity"``: an
            operand of ``is``; ``"store"``: assigned or deleted; ``"computed"``: an attribute whose
            name is computed at run time.
        line: in the source file.
    """

    source: str
    name: str
    path: tuple[str, ...]
    action: str
    line: int


class CodeReads(NamedTuple):
    """Everything that a code object and those inside it use.

    Attributes:
        accesses: in the order of the code.
        attributes: names looked up on objects that could not be followed, with a line each.
        stores: attributes assigned or deleted on such objects: (local variable or "", attribute,
            line).
        sets: lines where a set is made whose order could matter.
    """

    accesses: tuple[Access, ...]
    attributes: tuple[tuple[str, int], ...]
    stores: tuple[tuple[str, str, int], ...]
    sets: tuple[int, ...]


#: The origins of the value on top of the stack; a local variable can have several.
_Origin = tuple[str, str, tuple[str, ...]]

#: Instructions that leave the top of the stack as it is.
_TRANSPARENT = frozenset(
    {"CACHE", "COPY", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL", "RESUME"}
)
_LOAD_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_LOAD_CONSTANT = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
_LOAD_LOCAL = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "LOAD_FAST_BORROW"})
_LOAD_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_LOAD_FREE = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})


#: Methods of sets that make another one.
_SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference"})
#: Builtins whose result does not depend on the order of their argument.
_WITHOUT_ORDER = frozenset({"sorted", "len", "min", "max", "any", "all"})


def _has_only_numbers(values: frozenset[object]) -> bool:
    return all(isinstance(value, int | float | complex) for value in values)


@lru_cache(maxsize=4096)
def code_reads(code: CodeType) -> CodeReads:
    """Scan ``code`` and the code objects nested in it."""
    accesses: list[Access] = []
    attributes: list[tuple[str, int]] = []
    stores: list[tuple[str, str, int]] = []
    sets: list[int] = []
    pending = [(code, frozenset(code.co_freevars))]
    while pending:
        current, free = pending.pop()
        scan = _Scan(current, free)
        scan.run()  # learns which local variables refer to values that are not local
        scan.run()
        accesses += scan.accesses
        attributes += scan.attributes
        sets += scan.sets
        # The parameters of an inner function do not describe the outer one's.
        stores += scan.stores if current is code else [("", *s[1:]) for s in scan.stores]
        nested = [constant for constant in current.co_consts if isinstance(constant, CodeType)]
        pending += [(inner, free & frozenset(inner.co_freevars)) for inner in nested]
    return CodeReads(tuple(accesses), tuple(attributes), tuple(stores), tuple(sets))


def storing_line(code: CodeType, name: str) -> int:
    """The first line that seems to change what it reads as ``name``: that names it, and stores an
    item or an attribute, or calls a method that changes a container; 0 if there is none."""
    last = name.rpartition(".")[2]
    naming, storing = set[int](), set[int]()
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        if instruction.positions is not None and instruction.positions.lineno:
            line = instruction.positions.lineno
        if instruction.argval == last:
            naming.add(line)
        is_call = instruction.argval in CHANGING_METHODS
        if is_call or instruction.opname.startswith(("STORE_S", "STORE_ATTR", "DELETE_SUBSCR")):
            storing.add(line)
    return min(naming & storing, default=0)


def simple_parts(op: str, value: object) -> list[tuple[str, object]]:
    """The simple instructions of a fused instruction of newer interpreters."""
    if isinstance(value, tuple) and "_FAST_" in op:
        names = re.findall(r"(?:LOAD|STORE)_FAST(?:_BORROW)?", op)
        if len(names) == len(value):
            return list(zip(names, value, strict=True))
    return [(op, value)]


class _Scan:
    """One pass over the instructions, with the origins of the value on top of the stack."""

    def __init__(self, code: CodeType, free: frozenset[str]) -> None:
        self._instructions = list(dis.get_instructions(code))
        self._line = code.co_firstlineno
        self._free = free
        self._aliases: dict[str, list[_Origin]] = {}

    def run(self) -> None:
        self.accesses: list[Access] = []
        self.attributes: list[tuple[str, int]] = []
        self.stores: list[tuple[str, str, int]] = []
        self.sets: list[int] = []
        #: Whether a set is on top of the stack, and the global that came before it.
        self._has_set, self._function = False, ""
        #: Whether keys of a dictionary are on the stack; local variables that have some.
        self._has_keys, self._attribute_before = False, ""
        self._keys: set[object] = set()
        #: The local variable on top of the stack, if one is.
        self._local = ""
        self._top: list[_Origin] = []
        #: The value below it on the stack.
        self._below: list[_Origin] = []
        self._imported: _Origin | None = None
        #: The progress of a `getattr(object, "name"[, constant])` or `hasattr`; None outside of it.
        self._getattr: str | None = None
        self._getter = ""
        self._constants: list[object] = []
        self._previous = ""
        for instruction in self._instructions:
            if instruction.positions is not None and instruction.positions.lineno:
                self._line = instruction.positions.lineno
            is_binary = instruction.opname == "BINARY_OP"
            argument = instruction.argrepr if is_binary else instruction.argval
            for op, value in simple_parts(instruction.opname, argument):
                self._step(op, value)
        self._finish("load")

    def _step(self, op: str, value: object) -> None:
        if op in _TRANSPARENT:
            # COPY before LOAD_ATTR is how `owner.name += 1` starts.
            self._previous = op if op == "COPY" else self._previous
            return
        local, self._local = self._local, ""
        self._follow_sets(op, value)
        self._follow_getattr(op, value)
        if op in _LOAD_ATTRIBUTE or op in ("STORE_ATTR", "DELETE_ATTR"):
            self._attribute(op, str(value), local)
        elif op in _LOAD_CONSTANT:
            self._constant(value)
        elif op in _LOAD_GLOBAL:
            self._push([("global", str(value), ())])
            if value in ("getattr", "hasattr"):
                self._top, self._getattr, self._getter = [], "object", str(value)
        elif op in _LOAD_FREE:
            self._push([("free", str(value), ())] if value in self._free else [])
        elif op in _LOAD_LOCAL:
            self._push(list(self._aliases.get(str(value), ())))
            self._local = str(value)
        elif op in ("IMPORT_NAME", "IMPORT_FROM"):
            self._import(op, str(value))
        else:
            self._other(op, value)
        if op not in _LOAD_CONSTANT:
            self._constants.clear()
        self._previous = op

    def _follow_sets(self, op: str, value: object) -> None:
        """Report sets, except those of numbers, and uses in which the order cannot matter."""
        if self._has_set and op != "CONTAINS_OP":
            self.sets.append(self._line)
        self._has_set = (
            (op in ("BUILD_SET", "SET_ADD") and value != 0)
            or (op == "SET_UPDATE" and self._previous not in _LOAD_CONSTANT)
            or (op in _LOAD_ATTRIBUTE and value in _SET_METHODS)
            or (op == "BINARY_OP" and self._has_keys and str(value)[0] in "&|^-")
            or (
                op in _LOAD_CONSTANT
                and isinstance(value, frozenset)
                and not _has_only_numbers(value)
            )
        )
        self._follow_keys(op, value)
        name = str(value) if op in _LOAD_GLOBAL else ""
        if name in ("set", "frozenset") and self._function not in _WITHOUT_ORDER:
            self.sets.append(self._line)
        self._function = name

    def _follow_keys(self, op: str, value: object) -> None:
        """Whether what ``keys()`` or ``items()`` gave is on the stack: `&` makes a set of it."""
        if op in _LOAD_ATTRIBUTE:
            self._attribute_before = str(value)
        elif op == "CALL":
            is_method = self._previous in _LOAD_ATTRIBUTE
            self._has_keys = is_method and self._attribute_before in ("keys", "items")
        elif op in _LOAD_LOCAL:
            self._has_keys |= value in self._keys
        elif op == "STORE_FAST" and self._has_keys:
            self._keys.add(value)
            self._has_keys = False
        elif not op.startswith("LOAD_"):
            self._has_keys = False

    def _follow_getattr(self, op: str, value: object) -> None:
        """Accept only a constant name and a constant default; report every other call."""
        state = self._getattr
        if state is None:
            return
        if state == "object":
            if op in _LOAD_CONSTANT and isinstance(value, str):
                self._getattr = "name"
                return
            if op in _LOAD_GLOBAL | _LOAD_FREE | _LOAD_LOCAL | _LOAD_ATTRIBUTE:
                return
        elif state == "name" and op in _LOAD_CONSTANT:
            self._getattr = "default"
            return
        self._getattr = None
        if state == "object" or op != "CALL":
            self.accesses.append(Access("global", self._getter, (), "computed", self._line))

    def _push(self, origins: list[_Origin]) -> None:
        self._below = self._top
        self._finish("load")
        self._top = origins

    def _finish(self, action: str) -> None:
        """Report that the value on top is used where it cannot be followed."""
        for source, name, path in self._top:
            self.accesses.append(Access(source, name, path, action, self._line))
        self._top = []

    def _attribute(self, op: str, name: str, local: str = "") -> None:
        augmented = self._previous == "COPY"
        if op in _LOAD_ATTRIBUTE and not augmented:
            if not self._top:
                self.attributes.append((name, self._line))
            self._top = [(source, root, (*path, name)) for source, root, path in self._top]
            return
        if self._top:
            self._top = [(source, root, (*path, name)) for source, root, path in self._top]
            self._finish("store")
        elif self._previous != "SWAP":  # the second half of `owner.name += 1`
            self.stores.append((local, name, self._line))

    def _constant(self, value: object) -> None:
        if self._getattr == "name" and isinstance(value, str):
            self._attribute("LOAD_ATTR", value)
        else:
            self._finish("load")
        self._constants.append(value)

    def _import(self, op: str, name: str) -> None:
        if op == "IMPORT_FROM":
            if self._imported is not None:
                source, root, path = self._imported
                self._top = [(source, root, (*path, name))]
            return
        self._finish("load")
        level, names = self._constants[-2:] if len(self._constants) >= 2 else (0, None)
        # Without a list of names, `import a.b` gives `a`.
        root = name if names else name.partition(".")[0]
        self._imported = ("import", "." * (level if isinstance(level, int) else 0) + root, ())
        self._top = [self._imported]
        if names:
            self._finish("alias")
            self._top = []
        elif "." in name:  # the submodule is loaded too
            self.accesses.append(Access("import", name, (), "alias", self._line))

    def _other(self, op: str, value: object) -> None:
        if op in ("SWAP", "POP_TOP") and self._previous in ("IMPORT_FROM", "SWAP"):
            return  # `import a.b as c` shuffles the stack before it stores
        if op == "STORE_FAST" and self._top:
            known = self._aliases.setdefault(str(value), [])
            known += [origin for origin in self._top if origin not in known]
            stays = self._top if self._previous == "COPY" else []  # `(m := module).name`
            self._finish("alias")
            self._top = stays
            return
        if op == "IS_OP":
            self._finish("identity")
            self._top, self._below = self._below, []
            self._finish("identity")
            return
        self._finish("member" if op == "CONTAINS_OP" else "load")
        if op in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            self.accesses.append(Access("global", str(value), (), "store", self._line))
        elif op in ("STORE_DEREF", "DELETE_DEREF") and value in self._free:
            self.accesses.append(Access("free", str(value), (), "store", self._line))
