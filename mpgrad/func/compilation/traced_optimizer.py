"""update(): one parameter's step in an optimizer, while a function is traced.

Learning rates and counts of steps are read and written anew in each run. A step that asks for more
(a branch on a count) is not looked into: the program calls the optimizer's own method.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.arrays.cpu.array_program import TRACING, Unreadable, plain
from mpgrad.arrays.cpu.array_proxies import NumberProxy
from mpgrad.optim.optimizer import Optimizer
from mpgrad.recording.tensors.tensor import Tensor


def update(
    program: Any, optimizer: Optimizer, parameter: Tensor, grad: Tensor, group: dict[str, Any]
) -> None:
    """One parameter's step."""
    if program.is_given_up:
        optimizer._update(parameter, grad, group)
        return
    kept = optimizer.state.get(parameter)
    held = [parameter, *(v for v in (kept or {}).values() if isinstance(v, Tensor))]
    before = [plain(tensor._array).copy("K") for tensor in held]
    lines, state = len(program.lines), dict(kept or {})
    try:
        _update_traced(program, optimizer, parameter, grad, group, kept)
        return
    except Unreadable:
        del program.lines[lines:]
        for tensor, array in zip(held, before, strict=True):
            np.copyto(plain(tensor._array), array)
        if kept is not None:
            kept.update(state)
    _update_whole(program, optimizer, parameter, grad, group)
    program.made_state |= optimizer.state.get(parameter) is not kept


def _update_traced(
    program: Any, optimizer: Any, parameter: Tensor, grad: Tensor, group: dict[str, Any], kept: Any
) -> None:
    seen = dict(group)
    if type(group.get("lr")) is float:
        name = f"{program.bound(group, 'group')}['lr']"
        seen["lr"] = NumberProxy(program, group["lr"], name)
    scratch = getattr(optimizer, "_scratch", None)
    program.strict += 1
    try:
        if kept is not None:
            optimizer.state[parameter] = _TracedState(program, kept)
        if scratch is not None:
            optimizer._scratch = _TracedScratch(program, scratch)
        optimizer._update(parameter, grad, seen)
    finally:
        program.strict -= 1
        made = optimizer.state.pop(parameter, None)
        if kept is not None:
            optimizer.state[parameter] = kept
        if scratch is not None:
            optimizer._scratch = scratch
    if kept is None and made is not None:
        raise Unreadable("the state of an optimizer, which this step has made")


def _update_whole(
    program: Any, optimizer: Optimizer, parameter: Tensor, grad: Tensor, group: dict[str, Any]
) -> None:
    """The optimizer's own method, called in each run."""
    held = [parameter, grad]
    state = (optimizer.state.get(parameter) or {}).values()
    held += [value for value in state if isinstance(value, Tensor)]
    counters = {id(tensor._version_counter): tensor._version_counter for tensor in held}
    before = {key: counter.value for key, counter in counters.items()}
    traced = [tensor._array for tensor in held]
    for tensor in held:
        tensor._array = plain(tensor._array)
    try:
        TRACING.paused(optimizer._update, (parameter, grad, group), {})
    finally:
        for tensor, array in zip(held, traced, strict=True):
            tensor._array = array
    for key, counter in counters.items():
        program.counted[key] = program.counted.get(key, 0) + counter.value - before[key]
    program.known["Tensor"] = Tensor
    update = program.bound(optimizer, "optimizer")
    given = f"{program.bound(parameter, 'p')}, Tensor({program.text(grad._array)})"
    program.write(f"{update}._update({given}, {program.bound(group, 'group')})")


class _TracedState(dict[str, Any]):
    """The state of a parameter whose numbers the program reads and writes."""

    def __init__(self, program: Any, kept: dict[str, Any]) -> None:
        super().__init__(kept)
        self._program, self._kept = program, kept
        self._name = program.bound(kept, "state")

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if type(value) in (int, float):
            return NumberProxy(self._program, value, f"{self._name}[{key!r}]")
        return value

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if super().get(key) is not None else default

    def __setitem__(self, key: str, value: Any) -> None:
        if type(value) is not NumberProxy:
            raise Unreadable("the state of an optimizer")
        self._program.write(f"{self._name}[{key!r}] = {value._name}")
        self._kept[key] = value._value
        super().__setitem__(key, value._value)


class _TracedScratch:
    """The memory of an optimizer for what it computes on the way: the same in each run."""

    def __init__(self, program: Any, scratch: Any) -> None:
        self._program, self._scratch = program, scratch

    def like(self, array: Any, which: int) -> Any:
        memory = self._scratch.like(plain(array), which)
        self._program.known[name := self._program.fresh()] = memory
        return self._program.named(memory, name)
