"""stores_elsewhere(): whether code sets items of anything that it has not made itself.

``out = np.zeros(n)`` and then ``out[k] = value`` changes nobody else's array. The bytecode shows
which local variables hold only what was just made. Where it is not clear, the answer is yes.
"""

from __future__ import annotations

import dis
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType
from typing import NamedTuple

from mpgrad.shipping.code_reads import simple_parts

#: Instructions that set or delete items -> how many values lie on the stack above the container.
_STORES = {"STORE_SUBSCR": 1, "DELETE_SUBSCR": 1, "STORE_SLICE": 2}
#: Functions and methods whose result nobody else has.
_MAKERS = frozenset(
    {
        *("arange", "array", "astype", "copy", "dict", "empty", "empty_like", "full", "full_like"),
        *("linspace", "list", "ones", "ones_like", "zeros", "zeros_like"),
    }
)
#: Instructions whose result is new.
_MAKE = frozenset({"BUILD_LIST", "BUILD_MAP", "LIST_EXTEND", "DICT_UPDATE"})
_CALLS = frozenset({"CALL", "CALL_KW"})
#: Between a function on the stack and its call, beside its arguments.
_AROUND_CALLS = frozenset({"CACHE", "EXTENDED_ARG", "KW_NAMES", "PRECALL"})
_NAMED = frozenset({"LOAD_ATTR", "LOAD_GLOBAL", "LOAD_METHOD", "LOAD_NAME"})
_JUMPS = frozenset(dis.opname[code] for code in (*dis.hasjrel, *dis.hasjabs))


class _Step(NamedTuple):
    """A simple instruction, and how many values are on the stack behind it.

    ``is_edge``: the code can jump from here or to here, so that what stands before tells nothing.
    """

    op: str
    value: object
    height: int
    is_edge: bool


def stores_elsewhere(code: CodeType) -> bool:
    """Whether ``code``, without the code objects in it, may set items of what others have."""
    steps = _steps(code)
    own: set[object] | None = None
    for at, step in enumerate(steps):
        above = _STORES.get(step.op)
        if above is None:
            continue
        own = _own_variables(code, steps) if own is None else own
        name = _container(steps, at, above)
        if name is None or name not in own:
            return True
    return False


def _steps(code: CodeType) -> list[_Step]:
    steps, height = list[_Step](), 0
    for instruction in dis.get_instructions(code):
        op = instruction.opname
        argument = instruction.argrepr if op == "BINARY_OP" else instruction.argval
        after = height + dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        is_edge = instruction.is_jump_target or op in _JUMPS
        parts = simple_parts(op, argument)
        for part, value in parts[:-1]:
            height += 1 if part.startswith("LOAD") else -1
            steps.append(_Step(part, value, height, is_edge))
        height = after
        steps.append(_Step(*parts[-1], height, is_edge))
    return steps


def _pushed(steps: list[_Step], at: int, height: int) -> int | None:
    """The last instruction before ``at`` behind which so many values were on the stack."""
    for before in range(at - 1, -1, -1):
        step = steps[before]
        if step.is_edge:
            return None
        if step.height == height and step.op not in _AROUND_CALLS:
            return before
    return None


def _container(steps: list[_Step], at: int, above: int) -> object:
    """The local variable whose items are set at ``at``; None if it is something else."""
    if [step.op for step in steps[at - 2 : at]] == ["SWAP", "SWAP"]:  # `out[k] += 1`
        above += 1
    top = steps[at - 1].height
    found = _pushed(steps, at, top - above)
    if found is None or not steps[found].op.startswith("LOAD_FAST"):
        return None
    return steps[found].value


def _own_variables(code: CodeType, steps: list[_Step]) -> set[object]:
    """The local variables that hold only what the code has just made."""
    own, others = set[object](), set[object](_parameters(code))
    for at, step in enumerate(steps):
        if step.op.startswith("STORE_FAST"):
            (own if not step.is_edge and at and _is_new(steps, at - 1) else others).add(step.value)
    return own - others


def _parameters(code: CodeType) -> tuple[str, ...]:
    extra = sum(bool(code.co_flags & flag) for flag in (CO_VARARGS, CO_VARKEYWORDS))
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + extra]


def _is_new(steps: list[_Step], at: int) -> bool:
    """Whether nobody else has the result of the instruction at ``at``."""
    step = steps[at]
    if step.is_edge:
        return False
    if step.op == "BINARY_OP":
        return not str(step.value).endswith("=")
    if step.op in _CALLS:
        function = _pushed(steps, at, step.height + 1)
        if function is not None and steps[function].op == "PUSH_NULL":  # from Python 3.13 on
            function -= 1
        return function is not None and (
            steps[function].op in _NAMED and steps[function].value in _MAKERS
        )
    return step.op in _MAKE
