"""The random numbers of calls.

Those of a process's generators come from (seed, item). Of a generator among the arguments a call
has a copy, and the caller's own goes on from where that has stopped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from mpgrad.autograd.running import engine_slot
from mpgrad.calls.array_library import ArrayLibrary
from mpgrad.ops.generators import Generator

# ---------------------------------------------------------------------- of the process


def draw_seed(library: ArrayLibrary) -> tuple[int, int, int]:
    """One number of each of this process's generators: the library's, NumPy's and Python's."""
    return library.draw(), int(np.random.randint(1 << 31)), random.getrandbits(62)


def seed_generators(library: ArrayLibrary, seed: tuple[int, int, int], index: int) -> None:
    """Let this process's generators give the random numbers of item ``index``."""
    drawn, numpys, pythons = seed
    library.seed(drawn, index)
    np.random.seed(np.array((numpys, index & 0xFFFFFFFF, index >> 32), np.uint32))
    random.seed(pythons << 64 | index)


@contextmanager
def generators_kept(library: ArrayLibrary) -> Iterator[None]:
    """Leave this process's generators as they were; a worker's belong to nobody."""
    if engine_slot.is_worker:
        yield
        return
    numpys, pythons = np.random.get_state(), random.getstate()
    try:
        with library.generator_kept():
            yield
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)


# ---------------------------------------------------------------------- among the arguments


class Drawn(NamedTuple):
    """A result, and the generators from which its call has drawn.

    Attributes:
        result: of the call.
        states: for each generator the number of its item and of the argument, and its new state.
    """

    result: Any
    states: tuple[tuple[int, int, Any], ...]


class GeneratorKind(NamedTuple):
    """A class of random generators.

    Attributes:
        cls: the class.
        state: gives the state of one, as a value whose ``repr`` shows all of it.
        set_state: gives one such a state.
    """

    cls: type[Any]
    state: Callable[[Any], Any]
    set_state: Callable[[Any, Any], None]


def _numpys(generator: Any) -> Any:
    return generator.bit_generator.state


def _set_numpys(generator: Any, state: Any) -> None:
    generator.bit_generator.state = state


def _pythons(generator: random.Random) -> Any:
    return generator.getstate() if type(generator) is random.Random else None


#: Array libraries add theirs.
GENERATORS = [
    GeneratorKind(np.random.Generator, _numpys, _set_numpys),
    GeneratorKind(
        Generator, lambda one: _numpys(one.numpy()), lambda one, new: _set_numpys(one.numpy(), new)
    ),
    GeneratorKind(
        np.random.RandomState,
        lambda one: one.get_state(legacy=False),
        np.random.RandomState.set_state,
    ),
    GeneratorKind(random.Random, _pythons, random.Random.setstate),
]


def _kind_of(value: Any) -> GeneratorKind | None:
    for kind in GENERATORS:
        if isinstance(value, kind.cls):
            return kind
    return None


def state_of(value: Any) -> Any:
    """The state of a random generator; None for anything else."""
    kind = _kind_of(value)
    return None if kind is None else kind.state(value)


def go_on(value: Any, state: Any) -> None:
    """Give a generator the state of its copy."""
    kind = _kind_of(value)
    if kind is not None:
        kind.set_state(value, state)


def states_of(args: Sequence[Any]) -> dict[int, Any]:
    """The states of the generators among ``args``, by their places."""
    return {at: state for at, one in enumerate(args) if (state := state_of(one)) is not None}


def drawn_from(
    item: int, before: dict[int, Any], args: Sequence[Any]
) -> list[tuple[int, int, Any]]:
    """The generators of item ``item`` that have another state than ``before``."""
    now = {at: state_of(args[at]) for at in before}
    return [(item, at, now[at]) for at in before if repr(now[at]) != repr(before[at])]


def let_go_on(drawn: Drawn, items: Sequence[Sequence[Any]], by: dict[int, int], name: str) -> None:
    """Let the items' generators go on from where the calls of ``name`` have stopped.

    Args:
        drawn: of one call.
        items: their arguments.
        by: the items that have drawn from generators, by the ``id`` of these; grows.
        name: of the function.

    Raises:
        RuntimeError: two items have drawn from the same generator.
    """
    for item, at, state in drawn.states:
        generator = items[item][at]
        other = by.setdefault(id(generator), item)
        if other != item:
            raise RuntimeError(
                f"items {other} and {item} of {name} have both drawn from the same generator, each "
                "from a copy of it: the same numbers. Give each item one of its own (rng.spawn(n) "
                "of NumPy), or a seed"
            )
        go_on(generator, state)
