"""``mg.compile``: a function of Tensors that comes again runs as one straight-line program.

The first call is traced: it runs as always, and every call of NumPy behind it is noted, those of
its backward and of an optimizer's step, too. Calls that are alike run the same calls of NumPy in
the same order, so they give the same bits.
"""

from __future__ import annotations

import functools
import threading
import warnings
from contextlib import ExitStack
from typing import Any

import numpy as np

from mpgrad.arrays.cpu.array_program import TRACING
from mpgrad.arrays.cuda.device_arrays import CUDA, get_default_device
from mpgrad.autograd.profiling.ranges import RUNNING
from mpgrad.autograd.running import engine_slot
from mpgrad.autograd.running.deferred_interrupts import Interrupts
from mpgrad.autograd.running.running_backward import innermost
from mpgrad.base.dtype import default_float
from mpgrad.calls.custom_functions.constants import same
from mpgrad.errors import CompilationError, PerformanceWarning
from mpgrad.func.compilation.arguments import Arguments
from mpgrad.func.compilation.outside import Outside
from mpgrad.func.compilation.python_calls import Watch
from mpgrad.func.compilation.read_places import Places, ReadPlace, names_in
from mpgrad.func.compilation.traced_backward import TracedBackward
from mpgrad.func.compilation.traced_call import CallProgram, OperatorTracer, release, tensors_alive
from mpgrad.func.compilation.variant import MISS, Variant
from mpgrad.nn.module import Module
from mpgrad.recording.dispatch.operator_mode import MODES
from mpgrad.recording.graph.anomaly import mode as anomaly
from mpgrad.recording.graph.grad_modes import is_grad_enabled, is_inference_mode_enabled
from mpgrad.recording.graph.node import SEQUENCE
from mpgrad.recording.tensors import saved_tensor_clones, storage
from mpgrad.recording.tensors.hooks_in_force import HOOKS

#: Cases of one function that are compiled; further ones run as without ``compile``.
VARIANTS_MAX = 8
#: Traced calls that may be lost: an optimizer made its state, another thread used the tensors.
_WARM_UPS_MAX = 3

#: While a call is traced, its Tensors hold other arrays: one call at a time.
_tracing = threading.RLock()


def compile(  # noqa: A001 (PyTorch's name)
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """``model``, whose calls run as a straight-line program from the second like one on.

    Args:
        model: a function of Tensors, or a Module; without it, a decorator.
        fullgraph: raise where a call cannot be compiled; else it runs as without ``compile``, which
            a ``PerformanceWarning`` says once.
        dynamic: must not be True: each shape is compiled for itself, up to 8.
        backend, mode, options: there is one of each; other ones than PyTorch's default are refused.
        disable: return ``model`` as it is.

    Returns:
        A function with the arguments of ``model``; for a Module, a Module that shares all it has.

    Raises:
        TypeError: ``model`` cannot be called.
        ValueError: an option that is not offered.
        errors.CompilationError: when called, with ``fullgraph``.
    """
    _check_options(dynamic, backend, mode, options)
    if model is None:
        given = functools.partial(compile, fullgraph=fullgraph, disable=disable)
        return lambda function: given(function)
    if not callable(model):
        raise TypeError(f"compile() takes a function or a Module, not {type(model).__name__}")
    if isinstance(model, type):
        raise TypeError("compile() takes a function or a Module, not a class; compile an instance")
    if disable:
        return model
    if isinstance(model, Module):
        return CompiledModule(model, fullgraph)
    return _function(CompiledFunction(model, fullgraph))


def _check_options(dynamic: Any, backend: Any, mode: Any, options: Any) -> None:
    if dynamic:
        raise ValueError(
            "compile(dynamic=True) is not offered: each shape is compiled for itself, up to "
            f"{VARIANTS_MAX}; leave dynamic out"
        )
    if backend not in (None, "inductor", "eager"):
        raise ValueError(f"compile(backend={backend!r}): there is one backend; leave it out")
    if mode not in (None, "default"):
        raise ValueError(f"compile(mode={mode!r}): there is one mode; leave it out")
    if options:
        raise ValueError("compile(options=...): there are none; leave it out")


def _function(made: CompiledFunction) -> Any:
    @functools.wraps(made.function)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        return made(*args, **kwargs)

    compiled.compilation = made  # type: ignore[attr-defined]
    return compiled


def _uncompiled(function: Any) -> CompiledFunction:
    made = CompiledFunction(function, False)
    made.reason = "it runs in a call of parallel_map() or fork()"
    return made


class CompiledModule(Module):
    """A Module that is compiled: parameters, buffers and attributes are the original's."""

    def __init__(self, module: Module, fullgraph: bool) -> None:
        super().__init__()
        self._orig_mod = module
        vars(self)["compilation"] = CompiledFunction(module, fullgraph)
        self.training = module.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the original's."""
        return self.compilation(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_orig_mod":
                raise
            return getattr(self._orig_mod, name)


class CompiledFunction:
    """A function, and the cases of it that are compiled.

    Attributes:
        function: the original.
        variants: the cases.
        reason: why no further one is compiled; empty while they are.
    """

    def __init__(self, function: Any, fullgraph: bool) -> None:
        self.function, self._fullgraph = function, fullgraph
        self.variants: list[Variant] = []
        self.reason = ""
        self._runs: tuple[Any, ...] = ()
        self._warm_ups = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for run in self._runs:
            found = run(args, kwargs)
            if found is not MISS:
                return found
        if self.reason or TRACING.program() is not None:
            return self.function(*args, **kwargs)
        with _tracing:  # another thread may have traced such a call meanwhile
            for run in self._runs:
                found = run(args, kwargs)
                if found is not MISS:
                    return found
            if not self.reason and _is_plain_here():
                interrupts = Interrupts()
                with interrupts.deferred():  # else Tensors could keep what stood for their arrays
                    found = self._traced(interrupts, args, kwargs)
                if found is not MISS:
                    return found
        return self.function(*args, **kwargs)

    def _reduce_by_value(self) -> Any:
        return _uncompiled, (self.function,)  # in a call of ``parallel_map``

    def source(self) -> str:
        """The source of all cases, for people to read; or why there is none."""
        found = [variant.source for variant in self.variants]
        if self.reason:
            found.append(f"# not compiled: {self.reason}\n")
        return "\n".join(found) or "# not compiled yet: it has not been called\n"

    # ------------------------------------------------------------------ one traced call

    def _traced(self, interrupts: Interrupts, args: Any, kwargs: dict[str, Any]) -> Any:
        """What the call returns; MISS if it is not made."""
        if len(self.variants) >= VARIANTS_MAX:
            self._leave(
                f"it was called in more than {VARIANTS_MAX} ways (shapes, dtypes, flags, or values "
                "that its code reads)"
            )
            return MISS
        program = CallProgram(self._fullgraph, {id(tensor) for tensor in tensors_alive()})
        arguments = Arguments(program, args, kwargs)
        around = Places(self.function)
        for label, value in arguments.objects:
            around.add_root(value, label)
        outside = Outside(
            program, arguments.tensors, [tensor for tensor, _ in around.tensors.values()]
        )
        reason = arguments.reason or outside.reason
        if around.is_too_large:
            reason = "it reaches too many variables"
        if reason:
            self._leave(reason)
            return MISS
        conditions = _conditions_here(program)
        watch = Watch(program)
        result = self._run(program, outside, watch, interrupts, args, kwargs)
        if (program.made_state or program.is_disturbed) and self._warm_ups < _WARM_UPS_MAX:
            self._warm_ups += 1
            outside.leave()
            release(program)
            return result
        try:
            self._keep(program, arguments, around, outside, watch, conditions, result)
        finally:
            outside.leave()
            release(program)
        if program.reason:
            self._leave(program.reason)
        return result

    def _run(
        self,
        program: CallProgram,
        outside: Outside,
        watch: Watch,
        interrupts: Interrupts,
        args: Any,
        kwargs: Any,
    ) -> Any:
        backward = TracedBackward(program, SEQUENCE.next())
        outside.enter()
        try:
            with ExitStack() as stack:
                stack.enter_context(TRACING.into(program))
                stack.enter_context(OperatorTracer(program))
                stack.enter_context(engine_slot.executing_with(backward))
                stack.enter_context(watch)
                stack.enter_context(interrupts.allowed())
                result = self.function(*args, **kwargs)
        except BaseException:
            program.is_given_up = True
            outside.leave()
            release(program)
            raise
        return result

    def _keep(
        self,
        program: CallProgram,
        arguments: Arguments,
        around: Places,
        outside: Outside,
        watch: Watch,
        conditions: list[str],
        result: Any,
    ) -> None:
        """Make a case of what was traced."""
        unknown = watch.codes - around.codes
        if unknown:
            name = next(iter(unknown)).co_name
            program.give_up(f"it runs {name}(), which is not found in what its code names")
        if not program.reason:
            conditions += _conditions_of(program, around.places, watch)
        if program.reason:
            return
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        variant = Variant(name, program, arguments, outside, conditions, result)
        if not variant.reason:
            self.variants.append(variant)
            self._runs = (variant.run, *self._runs)

    def _leave(self, reason: str) -> None:
        """Compile no further case, and say so once."""
        self.reason = reason
        name = getattr(self.function, "__name__", type(self.function).__name__)
        if self._fullgraph:
            raise CompilationError(f"mg.compile(fullgraph=True): {name}: {reason}")
        warnings.warn(
            f"mg.compile: {name} runs as without it: {reason}",
            PerformanceWarning,
            stacklevel=4,
        )


# ---------------------------------------------------------------------- what has to hold


def _is_plain_here() -> bool:
    """Whether a call here and now is one that can be traced, and is none of a backward's."""
    return not (
        MODES.entered
        or HOOKS.entered
        or CUDA.in_use
        or anomaly.enabled
        or TRACING.entered
        or storage.is_watched()
        or innermost() is not None
        or RUNNING.recording is not None
        or saved_tensor_clones.active is not None
    )


def _conditions_here(program: CallProgram) -> list[str]:
    """What has to hold of this thread and process."""
    program.known.update(
        is_plain_here=_is_plain_here,
        is_grad_enabled=is_grad_enabled,
        is_inference_mode_enabled=is_inference_mode_enabled,
        default_float=default_float,
        get_default_device=get_default_device,
    )
    dtype, device = program.bound(default_float()), program.bound(get_default_device(), "device")
    return [
        f"is_plain_here() and is_grad_enabled() is {is_grad_enabled()} and "
        f"is_inference_mode_enabled() is {is_inference_mode_enabled()}",
        f"default_float() == {dtype} and get_default_device() == {device}",
    ]


def _conditions_of(program: CallProgram, places: list[ReadPlace], watch: Watch) -> list[str]:
    """What has to hold of what the code that ran has read."""
    names = {name for code in watch.codes for name in names_in(code)}
    kept: list[bool] = []
    conditions = []
    for place in places:
        is_read = not place.name or place.name in names
        kept.append(is_read and (place.parent < 0 or kept[place.parent]))
        if not kept[-1]:
            continue
        if place.value is np and "random" in names:
            program.give_up("it names numpy.random, whose numbers it cannot draw anew")
            return []
        condition = _condition(program, place)
        if condition is None:
            kind = type(place.value).__name__
            program.give_up(f"it reads {place.label}, a {kind}, whose changes cannot be seen")
            return []
        if not eval(condition, program.known):
            program.give_up(f"it changes {place.label}, which no program would do again")
            return []
        conditions.append(condition)
    return list(dict.fromkeys(conditions))


def _condition(program: CallProgram, place: ReadPlace) -> str | None:
    program.known["same"] = same
    if place.how == "unknown":
        return None
    holder = program.bound(place.holder, "o")
    if place.how == "keys":
        return f"list({holder}) == {program.bound(place.value, 'keys')}"
    if place.how == "absent":
        return f"{holder}.keys().isdisjoint({program.bound(place.value, 'absent')})"
    if place.how == "length":
        return f"len({holder}) == {place.value}"
    value = program.bound(place.value, "v")
    if place.how == "state":
        optimizer, parameter = place.holder
        return (
            f"{program.bound(optimizer, 'optimizer')}.state.get({program.bound(parameter, 'p')}) "
            f"is {value}"
        )
    read = f"{holder}{place.expression}"
    if place.how == "same":
        return f"({read} is {value} or same({read}, {value}))"
    return f"{read} is {value}"
