"""Where the calls of a map run: in workers, or in this process while that is faster."""

from __future__ import annotations

import functools
import math
import types
from collections import OrderedDict
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol, TypeVar

from mpgrad.autograd.running import engine_slot
from mpgrad.calls.array_library import ArrayLibrary
from mpgrad.calls.call import FAILED
from mpgrad.calls.fork_function import Lifetime
from mpgrad.calls.map_time import MapTime
from mpgrad.calls.random_numbers import generators_kept
from mpgrad.engine.choice import Mode, Prediction
from mpgrad.engine.engine import current_engine
from mpgrad.scheduler.cost_model import CostModel


class HasLifetime(Protocol):
    """What a call has given."""

    @property
    def lifetime(self) -> Lifetime | None:
        """That of its branch, if it is recorded."""


R = TypeVar("R", bound=HasLifetime)

#: What workers must save at least: the messages of a map, and what it costs to learn.
MAP_US = 2000.0
#: The message and the copies of one item.
ITEM_US = 200.0
#: The same where it goes to another host.
HOST_ITEM_US = 1500.0
#: A task of a map takes at least so long, if it has enough chunks, and at most so long, if it has
#: several.
TASK_US, TASK_MAX_US = 2000.0, 10_000.0
#: But each worker gets at least so many tasks, because items differ.
TASKS_PER_WORKER = 2
#: A map is cut anew when its chunks take so many times longer or shorter than before.
CUT_AGAIN = 1.5
#: The functions whose times are remembered.
FUNCTIONS_MAX = 1024

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


def predict(name: str, items: int, workers: int, both_us: float | None = None) -> Prediction | None:
    """What the items take in each mode, in microseconds; None if the function has not run yet.

    Args:
        name, items: the function and how many.
        workers: how many there are.
        both_us: what both passes of an item take here, if that has been measured.
    """
    took_us = TIMES.get(name)
    if took_us is None:
        return None
    here_us = (both_us or took_us) * items
    is_far = current_engine().execution_for_calls().hosts is not None
    item_us = HOST_ITEM_US if is_far else ITEM_US
    passes = 1 if both_us is None else 2
    there_us = MAP_US + passes * item_us * items + here_us / max(min(workers, items), 1)
    return Prediction(here_us, there_us)


def is_worth_it(name: str, items: int, workers: int) -> bool:
    """Whether workers would finish the items sooner, as far as is known."""
    predicted = predict(name, items, workers)
    return predicted is not None and predicted.process < predicted.local


def sizes_of_tasks(chunk_us: float, chunks: int, workers: int) -> list[int]:
    """The numbers of chunks that the tasks of a map run, one after another.

    Chunks that are short beside a message share a task. Each worker's next task is half of its
    share of what is left, so that all workers end at about the same time (*factoring*: Hummel,
    Schonberg and Flynn, 1992).

    Args:
        chunk_us: how long a chunk takes.
        chunks: of the map.
        workers: the number of workers.
    """
    least = int(TASK_US / chunk_us)
    most = max(min(int(TASK_MAX_US / chunk_us), chunks // (TASKS_PER_WORKER * workers)), 1)
    sizes, left = list[int](), chunks
    while left:
        share = math.ceil(left / (TASKS_PER_WORKER * workers))
        size = min(max(share, least), most)
        for _ in range(workers):
            sizes.append(min(size, left))
            left -= sizes[-1]
            if not left:
                break
    return sizes


class Cuts:
    """How maps were cut into tasks. The same cut for about the same times has the same backward,
    which is planned once. As for ``Sizes`` there is no lock."""

    def __init__(self) -> None:
        self._made: OrderedDict[Any, tuple[float, list[int]]] = OrderedDict()

    def tasks(self, name: str, chunks: list[range]) -> list[range]:
        """The calls of each task, for chunks of calls that follow one another."""
        took_us = TIMES.get(name)
        if took_us is None:
            return chunks
        workers = current_engine().execution_for_calls().workers
        key = name, len(chunks[0]), len(chunks), workers
        made_for, sizes = self._made.pop(key, (0.0, []))
        chunk_us = max(took_us * len(chunks[0]), 1.0)
        if not made_for / CUT_AGAIN <= chunk_us <= made_for * CUT_AGAIN:
            made_for, sizes = chunk_us, sizes_of_tasks(chunk_us, len(chunks), workers)
        self._made[key] = made_for, sizes
        _shorten(self._made)
        tasks, at = list[range](), 0
        for size in sizes:
            tasks.append(range(chunks[at].start, chunks[at + size - 1].stop))
            at += size
        return tasks


CUTS = Cuts()


def run_wherever_it_is_faster(
    key: tuple[str, bool],
    count: int,
    here_until: Callable[[Callable[[int], bool]], list[R]],
    in_workers: Callable[[], list[R]],
) -> list[R]:
    """Run a map by the choice of ``engine.choice``. While the function is new, or the workers
    start, items run here, and the others in workers as soon as that is faster.

    Args:
        key: the name of the function, and whether a backward may come, whose time counts, too.
        count: of the items.
        here_until: runs items here until its argument is true of their number, and others in
            workers.
        in_workers: runs all of them in workers.

    Returns:
        What they have given. The time of the map ends with the lifetimes of its branches.
    """
    execution = current_engine().execution_for_calls()
    workers, is_ready = execution.workers, execution.are_workers_ready
    experience, started, (name, _) = execution.maps.of((key, count)), perf_counter(), key

    def predicted_for(items: int) -> Prediction | None:
        here_us = experience.here_us
        return predict(name, items, workers, None if here_us is None else here_us / count)

    def are_workers_better(done: int) -> bool:
        rest = predicted_for(count - done)
        if rest is None or rest.local <= rest.process:
            return False
        took_us = (perf_counter() - started) * 1e6
        is_long = took_us + rest.local >= experience.start_after_us
        return execution.are_workers_ready or (is_long and execution.start_for_calls())

    experience.note_ended()
    predicted = predicted_for(count)
    choice = predicted and experience.choose(predicted, has_workers=is_ready)
    mode: Mode | None = None
    if predicted is None and execution.hosts is not None:  # who has a cluster has long items
        ran = in_workers()
    elif choice and choice.mode == "local":
        ran, mode = here_until(lambda done: False), "local"
    elif choice and is_ready:
        ran, mode = in_workers(), "process"
    else:
        ran = here_until(are_workers_better)

    def tell(took_us: float) -> None:
        experience.ended.append((mode or "local", took_us, choice if mode else None))

    map_time = MapTime((perf_counter() - started) * 1e6, tell)
    for lifetime in [one.lifetime for one in ran if one.lifetime is not None]:
        lifetime.map_time = map_time
    return ran


def run_here(
    name: str,
    count: int,
    run: Callable[[int], Any],
    library: ArrayLibrary,
    *,
    until: Callable[[int], bool],
) -> list[Any]:
    """Run item after item in this process, until ``until(done)`` leaves the rest to workers."""
    found = []
    with generators_kept(library):  # once, not for each item
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
        """Count a map of ``fn``; whether it is the first, second, fourth, eighth ... one, or the
        first one after one that has raised."""
        if (name := name_of(fn)) in FAILED:
            FAILED.discard(name)
            return True
        fn, owner = _called(fn)
        key = owner, getattr(fn, "__code__", None) or (type(fn), id(fn))
        count = self._counts.pop(key, 0) + 1
        self._counts[key] = count
        _shorten(self._counts)
        return count & (count - 1) == 0


RUNS = Runs()
