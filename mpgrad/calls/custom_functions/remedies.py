"""What the user may do about a Function that stays in the client.

``run_on = "worker"`` is offered only where a worker has what the client has, as long as nobody
changes it. Where backward draws random numbers, changes something, or asks its process, that
promise would break results in silence.
"""

from __future__ import annotations

import builtins
import random
import sys
import types
from collections.abc import Collection
from enum import Enum, auto
from typing import Any, NamedTuple

import numpy as np

from mpgrad.calls.custom_functions.process_state import (
    CHANGING_ATTRIBUTES,
    CONTAINERS,
    DRAWING_ATTRIBUTES,
    draws_numbers,
)
from mpgrad.ops.generators import Generator
from mpgrad.recording.tensors.tensor import Tensor


class Remedy(Enum):
    """The kinds of problems, by what helps."""

    #: A value of which a worker cannot have a faithful copy.
    VALUE = auto()
    #: Code that cannot be looked through.
    CODE = auto()
    #: Random numbers of the process, or of a generator that others have.
    DRAWS = auto()
    #: The code changes something outside, or takes something from an object with a state.
    CHANGES = auto()
    #: Something that each process has for itself.
    OF_PROCESS = auto()
    #: The problem's text says what helps, if anything does.
    TOLD = auto()


class Obstacle(NamedTuple):
    """Why a worker's result could differ.

    Attributes:
        text: in words.
        remedy: the kind.
    """

    text: str
    remedy: Remedy = Remedy.TOLD


_HELP = {
    Remedy.VALUE: "To run it on a worker, set what it is made of on ctx, as arrays or numbers, and "
    "make it again in backward",
    Remedy.CODE: "To run it on a worker, compute that in forward and pass it through ctx",
    Remedy.DRAWS: "To run it on a worker, make the generator in backward from a seed that forward "
    "sets on ctx: np.random.default_rng(ctx.seed)",
    Remedy.CHANGES: "A worker would have one of its own. To run it on a worker, move that into "
    "forward or a hook of a tensor, or note it in a list on ctx, which comes back (y.grad_fn has "
    "it)",
    Remedy.OF_PROCESS: "To run it on a worker, do that in forward and pass the result through ctx",
}
#: The words of a warning.
WORDS_MAX = 30
_SILENT = 'set run_on = "client".'
_IN_SHORT = {
    Remedy.VALUE: f"Set what it is made of on ctx, or {_SILENT}",
    Remedy.CODE: f"Compute that in forward, into ctx, or {_SILENT}",
    Remedy.DRAWS: f"Draw from np.random.default_rng(ctx.seed), or {_SILENT}",
    Remedy.CHANGES: f"Do that in forward or a hook, or {_SILENT}",
    Remedy.OF_PROCESS: f"Do that in forward, into ctx, or {_SILENT}",
}
_CLIENT = 'run_on = "client" on the class, which keeps it in this process without this warning'
_PROMISE = (
    'run_on = "worker" on the class, which promises that its result depends on nothing else and '
    'that it changes nothing else (run_on = "client" keeps it in this process without this warning)'
)


def advice(problem: Obstacle, *, may_promise: bool) -> str:
    """What helps, as a sentence."""
    choice = f"set {_PROMISE if may_promise else _CLIENT}"
    help_ = _HELP.get(problem.remedy)
    return f"{help_}; or {choice}" if help_ else f"{choice[0].upper()}{choice[1:]}"


def in_words(function: str, problem: Obstacle, *, may_promise: bool = False) -> str:
    """Why a Function stays, and what helps."""
    return f"in {function}, {problem.text}. {advice(problem, may_promise=may_promise)}"


def in_one_line(function: str, problem: Obstacle) -> str:
    """What the warning says of a Function that stays: at most ``WORDS_MAX`` words."""
    text = problem.text.replace("reads the global", "reads").replace("the closure variable ", "")
    help_ = _IN_SHORT.get(problem.remedy, _SILENT[0].upper() + _SILENT[1:])
    words = text.split()
    room = WORDS_MAX - len(help_.split()) - 5
    if len(words) > room:
        text = " ".join([*words[: room - 1], "..."])
    return f"{function} runs in this process: {text}. {help_}"


def may_promise(problems: Collection[Obstacle]) -> bool:
    """Whether a worker could give the client's result, for all that can be seen."""
    return all(problem.remedy is Remedy.CODE for problem in problems)


def remedy_of(value: Any) -> Remedy:
    """What helps where the code reads ``value``, which is neither constant nor known code."""
    if isinstance(value, types.BuiltinFunctionType | types.MethodType):
        return Remedy.DRAWS if _is_generator(value.__self__) else Remedy.CHANGES
    if _is_generator(value):
        return Remedy.DRAWS
    kind = type(value)
    root = kind.__module__.partition(".")[0]
    if root in ("numpy", "mpgrad"):
        return Remedy.VALUE if isinstance(value, np.ndarray | Tensor) else Remedy.OF_PROCESS
    # Compiled types that name no module seem to be builtins, as SciPy's SuperLU.
    is_foreign = root == "builtins" and not hasattr(builtins, kind.__name__)
    is_python_s = root in sys.stdlib_module_names and (not is_foreign or hasattr(kind, "__next__"))
    is_state = is_python_s and kind.__name__ not in CONTAINERS
    return Remedy.CHANGES if is_state else Remedy.VALUE


def remedy_in(module: str, attribute: str | None) -> Remedy:
    """What helps where the code reads ``module.attribute``, which belongs to one process."""
    return Remedy.DRAWS if draws_numbers(module, attribute) else Remedy.OF_PROCESS


def remedy_of_attribute(name: str) -> Remedy:
    """What helps where the code uses an attribute that nearly always means a state."""
    if name in DRAWING_ATTRIBUTES:
        return Remedy.DRAWS
    return Remedy.CHANGES if name in CHANGING_ATTRIBUTES else Remedy.OF_PROCESS


def _is_generator(value: Any) -> bool:
    """Whether ``value`` draws random numbers."""
    in_numpy = type(value).__module__.startswith("numpy.random")
    return in_numpy or isinstance(value, random.Random | Generator)
