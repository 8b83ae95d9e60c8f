"""Generator: where random numbers come from; the process has one, which ``manual_seed`` resets."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from mpgrad.arrays.cpu.array_program import TRACING
from mpgrad.base.context_manager import contextmanager
from mpgrad.base.device import CPU, Device
from mpgrad.base.thread_state import PerThread
from mpgrad.recording.tensors.tensor import Tensor

if TYPE_CHECKING:
    from numpy.random import Generator as NumpyGenerator

R = TypeVar("R")

#: The parts of a PCG64 generator's state (NumPy's names), and how many bytes each takes.
_STATE_BYTES = {"state": 16, "inc": 16, "has_uint32": 1, "uinteger": 4}
#: The seed of a new Generator, as in PyTorch.
DEFAULT_SEED = 67280421310721


class Generator:
    """An independent source of random numbers, for ``generator=`` of random functions.

    Args:
        device: "cpu"; draws for GPUs are made on the host, too.

    Raises:
        RuntimeError: another device.
    """

    def __init__(self, device: Device | str = "cpu") -> None:
        self.device = Device(device) if isinstance(device, str) else device
        if self.device != CPU:
            raise RuntimeError(
                f"a Generator is on the CPU, not on {device}: random numbers for GPUs are drawn on "
                "the host, and the same generator serves both"
            )
        self.manual_seed(DEFAULT_SEED)

    def manual_seed(self, seed: int) -> Generator:
        """Restart from ``seed`` (an int of 64 bits, a negative one as its complement)."""
        if not -(2**63) <= seed < 2**64:
            raise RuntimeError(f"Overflow when unpacking long: the seed {seed} has over 64 bits")
        _give_up("a seed")
        self._seed = int(seed) % 2**64
        self._numpy = np.random.Generator(np.random.PCG64(self._seed))
        return self

    def seed(self) -> int:
        """Restart from a seed of the operating system, and return that."""
        self.manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
        return self._seed

    def initial_seed(self) -> int:
        """The seed that it was last started from."""
        return self._seed

    def numpy(self) -> NumpyGenerator:
        """NumPy's generator behind this one; both share their state."""
        return self._numpy

    def get_state(self) -> Tensor:
        """The state as a tensor of bytes, for :meth:`set_state`."""
        _give_up("the state of a Generator")
        state = cast("Any", self._numpy.bit_generator.state)
        numbers = (*state["state"].values(), state["has_uint32"], state["uinteger"])
        data = b"".join(
            number.to_bytes(size, "little")
            for number, size in zip(numbers, _STATE_BYTES.values(), strict=True)
        )
        return Tensor(np.frombuffer(data, np.uint8).copy())

    def set_state(self, new_state: Tensor) -> None:
        """Continue from the state of a generator at :meth:`get_state`.

        Raises:
            TypeError: ``new_state`` is no tensor of bytes.
            RuntimeError: it has another length than a state.
        """
        if not isinstance(new_state, Tensor) or new_state.dtype != np.uint8:
            raise TypeError(
                "RNG state must be a tensor of dtype uint8, as get_rng_state() returns it"
            )
        _give_up("the state of a Generator")
        data, expected = new_state._array.tobytes(), sum(_STATE_BYTES.values())
        if len(data) != expected:
            raise RuntimeError(
                f"Expected an RNG state of size {expected} but found the input RNG state size to "
                f"be {len(data)}"
            )
        numbers = {}
        for name, size in _STATE_BYTES.items():
            numbers[name], data = int.from_bytes(data[:size], "little"), data[size:]
        bits = cast("Any", self._numpy.bit_generator)
        inner = {name: numbers.pop(name) for name in bits.state["state"]}
        bits.state = {**bits.state, "state": inner, **numbers}

    def __getstate__(self) -> tuple[int, bytes]:
        return self._seed, self.get_state()._array.tobytes()

    def __setstate__(self, state: tuple[int, bytes]) -> None:
        self.__init__()  # type: ignore[misc]
        self._seed = state[0]
        self.set_state(Tensor(np.frombuffer(state[1], np.uint8).copy()))


def _give_up(what: str) -> None:
    """Give up the tracing: later runs of the program would not repeat this call."""
    program = TRACING.program() if TRACING.entered else None
    if program is not None:
        program.give_up(f"{what} is not compiled")


class _InForce(PerThread):
    #: The ``generator=`` of a call; None: the process's.
    generator: Any = None


class _ProcessGenerator:
    #: Made on first use: loading ``numpy.random`` takes a third of the time of importing mpgrad.
    generator: Generator | None = None
    uses = 0


_in_force = _InForce()


def process_generator() -> Generator:
    """The Generator of this process, which starts from a seed of the operating system."""
    _ProcessGenerator.uses += 1
    generator = _ProcessGenerator.generator
    if generator is None:
        generator = _ProcessGenerator.generator = Generator()
        generator.seed()
    return generator


def uses_of_process_generator() -> int:
    """How often it was asked for: a number that stays the same shows that nothing was drawn."""
    return _ProcessGenerator.uses


def default_generator() -> NumpyGenerator:
    """NumPy's generator that a random function draws from now."""
    generator = _in_force.generator
    if TRACING.entered:
        program = TRACING.program()
        if program is not None and not program.is_given_up:
            return _traced(program, generator)  # type: ignore[no-any-return]
    return (generator or process_generator()).numpy() if not _is_numpy(generator) else generator


def _traced(program: Any, generator: Any) -> Any:
    """The object that draws for a traced program: each run uses its own current generator."""
    if generator is None:
        known = ("default_generator", default_generator)
        return program.draws(process_generator().numpy(), "default_generator()", known)
    name = program.bound(generator, "generator")
    if _is_numpy(generator):
        return program.draws(generator, name)
    return program.draws(generator.numpy(), f"{name}.numpy()")


def numpy_generator(generator: Generator | NumpyGenerator | None) -> NumpyGenerator:
    """The implementation of ``generator``; the process's for None."""
    if generator is None:
        return default_generator()
    if TRACING.entered and isinstance(generator, Generator):
        program = TRACING.program()
        if program is not None and not program.is_given_up:
            return _traced(program, generator)  # type: ignore[no-any-return]
    if isinstance(generator, Generator):
        return generator.numpy()
    if _is_numpy(generator):
        return generator
    raise TypeError(
        "generator must be a Generator of mpgrad's or NumPy's, not "
        f"{type(generator).__module__}.{type(generator).__qualname__}"
    )


def _is_numpy(generator: object) -> bool:
    # Not isinstance: that would load numpy.random.
    return type(generator).__module__.startswith("numpy.random")


def takes_generator(function: Callable[..., R]) -> Callable[..., R]:
    """Give a random function the argument ``generator=``."""

    @functools.wraps(function)
    def draw(*args: Any, generator: Any = None, **options: Any) -> R:
        if generator is None:
            return function(*args, **options)
        numpy_generator(generator)  # raises if the argument is no generator
        before, _in_force.generator = _in_force.generator, generator
        try:
            return function(*args, **options)
        finally:
            _in_force.generator = before

    own = inspect.signature(function)
    added = inspect.Parameter(
        "generator", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="Any"
    )
    draw.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*own.parameters.values(), added]
    )
    return draw


def manual_seed(seed: int) -> Generator:
    """Restart the Generator of this process from ``seed`` and return it."""
    _ProcessGenerator.uses += 1
    if _ProcessGenerator.generator is None:
        _ProcessGenerator.generator = Generator()
    return _ProcessGenerator.generator.manual_seed(seed)


def seed() -> int:
    """Restart the Generator of this process from a seed of the operating system; return that."""
    return process_generator().seed()


def initial_seed() -> int:
    """The seed that the Generator of this process was last started from."""
    return process_generator().initial_seed()


def get_rng_state() -> Tensor:
    """The state of this process's Generator as a tensor of bytes, for :func:`set_rng_state`."""
    return process_generator().get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Continue from the state of the Generator at :func:`get_rng_state`.

    Raises:
        TypeError: ``new_state`` is no tensor of bytes.
        RuntimeError: it has another length than a state.
    """
    process_generator().set_state(new_state)


@contextmanager
def fork_rng(enabled: bool = True) -> Iterator[None]:
    """Draws inside do not change the draws after it."""
    if not enabled:
        yield
        return
    before = get_rng_state()
    try:
        yield
    finally:
        set_rng_state(before)
