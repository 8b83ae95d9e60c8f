"""TracedCall: runs a function of Tensors once, and notes what becomes of their arrays.

The call does what it always does: what it returns and changes is real. Meanwhile every array of the
Tensors that it knows is a ArrayProxy, whichever way it is reached: an operator, a backward, an
optimizer's step. Where a value is read, or something happens that the noted program would not do
again, the program is given up and the call goes on as any other.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cpu.array_program import TRACING, ArrayProgram, Unreadable
from mpgrad.arrays.cpu.array_proxies import ArrayProxy, NumberProxy
from mpgrad.arrays.cpu.traced_namespace import TracedNamespace
from mpgrad.errors import CompilationError
from mpgrad.func.compilation.read_places import is_ours
from mpgrad.func.compilation.traced_optimizer import update
from mpgrad.recording.dispatch.operator_call import cpu
from mpgrad.recording.dispatch.operator_mode import OperatorMode
from mpgrad.recording.graph.node import Node
from mpgrad.recording.graph.registry import Operator
from mpgrad.recording.tensors.hooks_in_force import HOOKS
from mpgrad.recording.tensors.saved_tensor import SavedTensor
from mpgrad.recording.tensors.tensor import Tensor


class Called(NamedTuple):
    """One call of an operator, which a graph that outlives the program has to record again."""

    #: How many lines the program had then.
    line: int
    operator: Operator
    inputs: tuple[Any, ...]
    attributes: dict[str, Any]
    outputs: tuple[Tensor, ...]


def place_in_user_code() -> str:
    """Where this thread is now, in code that is no library's."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and is_ours(frame.f_code):
        frame = frame.f_back
    if frame is None:
        return "unknown place"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"


class CallProgram(ArrayProgram):
    """The program of one call.

    Attributes:
        reason: why it was given up.
    """

    def __init__(self, fullgraph: bool, outside: set[int]) -> None:
        super().__init__()
        self._fullgraph = fullgraph
        #: ids of all Tensors that were there before.
        self._outside = outside
        self.strict = 0
        self.reason = ""
        self._thread, self.is_disturbed = threading.get_ident(), False
        self.namespace = TracedNamespace(self, cpu, is_fixed=True)
        self.calls: list[Called] = []
        #: Nodes whose saved tensors a backward has used up.
        self.used_up: set[Node] = set()
        self.has_backward = False
        #: Tensors that were changed in place where that was recorded.
        self.rebased = False
        #: An optimizer made the state of a parameter: the next step differs from this one.
        self.made_state = False
        #: By id of a version counter: how often the program itself counts it.
        self.counted: dict[int, int] = {}
        self.indent = ""

    # ------------------------------------------------------------------ giving up

    def read(self, what: str) -> None:
        """Give the program up: from here on the call is as any other.

        Raises:
            CompilationError: that is not allowed.
        """
        if self.strict:
            raise Unreadable(what)
        self.give_up(f"{what} needs values that are known only when it runs")

    def give_up(self, reason: str) -> None:
        """From here on there is no program.

        Raises:
            CompilationError: with ``fullgraph``.
        """
        if self.is_given_up or threading.get_ident() != self._thread:
            return
        self.reason = f"{reason} ({place_in_user_code()})"
        self.is_given_up = True
        if self._fullgraph:
            raise CompilationError(
                f"mg.compile(fullgraph=True): {self.reason}. Take that out of the function, or "
                "leave fullgraph=False, with which such calls run as without mg.compile"
            )
        release(self)

    def write(self, line: str) -> None:
        if threading.get_ident() != self._thread and not self.is_given_up:
            self.is_given_up = self.is_disturbed = True
            self.reason = "another thread used its tensors while it was traced"
        super().write(self.indent + line)

    # ------------------------------------------------------------------ tensors

    def array_of(self, value: Any) -> Any:
        """What an operator gets for an input."""
        if not isinstance(value, Tensor):
            return value
        if type(value._array) is np.ndarray and not self.is_given_up:
            self.adopt(value)
        return value._array

    def adopt(self, tensor: Tensor) -> None:
        """``tensor``, which no operator has made: a constant that the function makes in each call.

        It is copied in each run, as the function could change it.
        """
        if id(tensor) in self._outside:
            self.give_up(
                f"it uses a tensor of shape {list(tensor.shape)} that is neither an argument nor "
                "found in the variables that its code names"
            )
            return
        array = tensor._array
        known = self._names.get(-id(array))
        if known is None:
            others = [old for key, (_, old) in self._names.items() if key < 0]
            if array.base is not None or any(np.may_share_memory(array, old) for old in others):
                self.give_up("it makes tensors that lie in the memory of a NumPy array")
                return
            name = self.fresh()
            self.write(f"{name} = {self.bound(array.copy('K'), 'constant')}.copy('K')")
            known = self._names[-id(array)] = name, array
        tensor._array = self.named(array, known[0])

    def admit(self, array: Any) -> None:
        if array.base is None and array.nbytes <= 1 << 20:
            return
        self.read("a NumPy array that is large, or lies in the memory of another one,")

    def number(self, expression: str, value: Any) -> NumberProxy:
        """A number that is computed in each run."""
        name = self.fresh()
        self.write(f"{name} = {expression}")
        return NumberProxy(self, value, name)

    def empty(self, shape: Any, dtype: Any) -> Any:
        """``storage.empty``."""
        return self.namespace.empty(tuple(shape), np.dtype(dtype))

    def draws(self, generator: Any, expression: str, *known: tuple[str, Any]) -> Any:
        """What draws random numbers anew in each run."""
        for name, value in known:
            self.known[name] = value
        return _Draws(self, generator, expression)

    def update(
        self, optimizer: Any, parameter: Tensor, grad: Tensor, group: dict[str, Any]
    ) -> None:
        """One parameter's step."""
        self.array_of(grad)
        update(self, optimizer, parameter, grad, group)


class _Draws:
    """A generator of NumPy's whose draws are noted."""

    def __init__(self, program: CallProgram, generator: Any, expression: str) -> None:
        self._program, self._generator, self._expression = program, generator, expression

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._generator, name)

        def draw(*args: Any, **kwargs: Any) -> Any:
            return self._program.call(method, args, kwargs, f"{self._expression}.{name}")

        return draw


class OperatorTracer(OperatorMode):
    """Runs operators on ArrayProxies."""

    def __init__(self, program: CallProgram) -> None:
        self._program = program

    def forward(
        self,
        operator: Operator,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        run: Callable[[], Any],
    ) -> Any:
        program = self._program
        if HOOKS.entered and not program.is_given_up:
            program.give_up("hooks of saved tensors (as checkpoint has) are not compiled")
        arrays = [program.array_of(value) for value in inputs]
        if program.is_given_up:
            return TRACING.paused(operator.forward, (cpu, *arrays), attributes)
        found = program.namespace.checked(functools.partial(operator.forward, **attributes), arrays)
        if program.is_given_up:
            return TRACING.paused(lambda found: found, (found,), {})
        return found

    def done(
        self,
        operator: Operator,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        outputs: Sequence[Tensor],
    ) -> None:
        lines = len(self._program.lines)
        self._program.calls.append(
            Called(lines, operator, tuple(inputs), dict(attributes), tuple(outputs))
        )

    def changed(self, operator: Operator, tensor: Tensor, others: Sequence[Any]) -> None:
        self._program.rebased |= tensor.requires_grad


# ---------------------------------------------------------------------- back to arrays


def tensors_alive() -> list[Any]:
    """All Tensors and SavedTensors of this process."""
    return [found for found in gc.get_objects() if type(found) is SavedTensor or _is_tensor(found)]


def _is_tensor(value: Any) -> bool:
    return Tensor in type(value).__mro__


def release(program: ArrayProgram) -> None:
    """Give every Tensor, and everything that was saved, its real array."""
    for held in tensors_alive():
        array = getattr(held, "_array", None)
        if type(array) is ArrayProxy and array._program is program:
            held._array = array._value
