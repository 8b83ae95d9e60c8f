"""Where the calls of a map run: in workers, or in this process while that is faster."""

from __future__ import annotations

import functools
import itertools
import types
from collections import OrderedDict
from collections.abc import Callable
from time import perf_counter
from typing import Any

from mpgrad.autograd.running import engine_slot
from mpgrad.calls.branch import generators_kept
from mpgrad.engine.engine import current_engine
from mpgrad.scheduler.cost_model import CostModel

#: What workers must save at least, in seconds: the messages of a map, and what it costs to learn.
WORTH_S = 0.002
#: The message and the copies of one item, in seconds.
ITEM_S = 0.0002
#: The functions whose times are remembered.
FUNCTIONS_MAX = 1024


#: The part of the time here that a map in workers must stay below, once both are measured.
GAIN = 0.95
#: Of so many maps that were better here, one is tried in workers again.
TRIAL_EVERY = 16

#: How long one item of each function takes, by its name.
TIMES = CostModel()


def name_of(fn: Any) -> str:
    """The name of a callable, for errors. A method has the name of the class that it is called on:
    ``Function.map`` calls the same method of each."""
    called, owner = _called(fn)
    if owner is not None:
        return f"{owner.__qualname__}.{called.__name__}"
    names = (getattr(one, "__qualname__", None) for one in (fn, called))
    return str(next(filter(None, names), type(called).__qualname__))


def key_of(fn: Any) -> str:
    """The name with that of its module, for what is learned of a callable."""
    called, owner = _called(fn)
    return f"{getattr(owner or called, '__module__', '')}.{name_of(fn)}"


def _called(fn: Any) -> tuple[Any, type[Any] | None]:
    """The function behind partials, methods and decorators, and the class of a method."""
    owner: type[Any] | None = None
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, types.MethodType):
            owner = fn.__self__ if isinstance(fn.__self__, type) else type(fn.__self__)
            fn = fn.__func__
        elif "__wrapped__" in getattr(fn, "__dict__", ()):  # not what a proxy makes of any name
            fn = fn.__wrapped__
        else:
            return fn, owner


def mode() -> str:
    """The mode of the current engine on this thread: "local", "process" or "auto"."""
    if engine_slot.is_local():
        return "local"
    engine = current_engine()
    return engine.execution_for_calls().preparation.mode()


def is_worth_it(name: str, items: int, workers: int) -> bool | None:
    """Whether workers would finish the items sooner; None if the function has not run yet."""
    took_us = TIMES.get(name)
    if took_us is None:
        return None
    here_s = took_us / 1e6 * items
    there_s = WORTH_S + ITEM_S * items + here_s / max(min(workers, items), 1)
    return workers > 1 and there_s < here_s


def was_better_here(name: str, items: int) -> bool:
    """Whether a map of so many items has taken longer in workers than it would take here. Now and
    then it is False although it has."""
    took_us, there_us = TIMES.get(name), IN_WORKERS.get(name, items)
    if took_us is None or there_us is None:
        return False
    return there_us >= GAIN * took_us * items and next(_trials) % TRIAL_EVERY != 0


_trials = itertools.count(1)


def run_here(
    name: str, count: int, run: Callable[[int], Any], *, until: Callable[[int], bool]
) -> list[Any]:
    """Run item after item in this process, until ``until(done)`` leaves the rest to workers."""
    found = []
    with generators_kept():  # once, not for each item
        for number in range(count):
            started = perf_counter()
            found.append(run(number))
            TIMES.observe(name, [(perf_counter() - started) * 1e6])
            if number + 1 < count and until(number + 1):
                break
    return found


def _shorten(table: OrderedDict[Any, Any]) -> None:
    if len(table) > FUNCTIONS_MAX:
        table.popitem(last=False)


class MapsInWorkers:
    """How long the last maps of a function over so many items have taken in workers, from their
    messages to their results. There is no lock, as for ``Sizes``."""

    #: The best of so many counts: a map may have waited for a processor, or for a worker's imports.
    RECENT = 3

    def __init__(self) -> None:
        self._took_us: OrderedDict[tuple[str, int], list[float]] = OrderedDict()

    def get(self, name: str, items: int) -> float | None:
        """Microseconds; None if there was no second map."""
        found = self._took_us.get((name, items), [])
        return min(found) if len(found) > 1 else None

    def note(self, name: str, items: int, took_us: float) -> None:
        """A map has taken that long."""
        before = self._took_us.pop((name, items), [])
        self._took_us[name, items] = [*before, took_us][-self.RECENT :]
        _shorten(self._took_us)


IN_WORKERS = MapsInWorkers()


class Sizes:
    """The bytes that the results of each function have taken, by its name.

    There is no lock: an update that another thread overtakes costs a little memory.
    """

    def __init__(self) -> None:
        self._nbytes: OrderedDict[str, int] = OrderedDict()

    def expected(self, name: str, calls: int, limit_bytes: int) -> int:
        """The bytes to lend for each result of so many calls: together at most an eighth of a
        limit, because lent memory is used memory. A call that needs more asks for it."""
        return min(self._nbytes.get(name, 0), limit_bytes // 8 // calls)

    def note(self, name: str, nbytes: int) -> None:
        """The largest result of a map took that many."""
        before = self._nbytes.pop(name, 0)
        self._nbytes[name] = max(nbytes, before - before // 2)
        _shorten(self._nbytes)


SIZES = Sizes()


class Runs:
    """How often the code of each function has been asked for, as for ``Sizes`` without a lock."""

    def __init__(self) -> None:
        self._counts: OrderedDict[Any, int] = OrderedDict()

    def is_watched(self, fn: Any) -> bool:
        """Count a map of ``fn``; whether it is the first, second, fourth, eighth ... one."""
        fn, owner = _called(fn)
        key = owner, getattr(fn, "__code__", None) or (type(fn), id(fn))
        count = self._counts.pop(key, 0) + 1
        self._counts[key] = count
        _shorten(self._counts)
        return count & (count - 1) == 0


RUNS = Runs()
