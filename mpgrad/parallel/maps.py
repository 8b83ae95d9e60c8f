"""parallel_map(): a function over items, both passes on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mpgrad.autograd.running import engine_slot
from mpgrad.calls.array_library import ArrayLibrary
from mpgrad.calls.branch import sum_of
from mpgrad.calls.own_tensors import LIBRARY
from mpgrad.parallel.calls_of_map import CallsOfMap
from mpgrad.parallel.placing import name_of

#: The number of chunks of a map with more items than that.
CHUNKS = 128


def parallel_map(
    fn: Callable[..., Any],
    *iterables: Iterable[Any],
    shared: Sequence[Any] | Mapping[str, Any] = (),
    out: str = "list",
    chunks: int | None = None,
    changes: Sequence[str] = (),
    retries: int = 0,
) -> Any:
    """``[fn(*item, *shared) for item in zip(*iterables)]``, forward and backward in workers.

    Each call is recorded in the worker that ran it, and differentiated there. The results have the
    same bits for any number of workers, and in ``Engine("local")``.

    ``fn`` may read what it likes: it travels by value with everything that it reaches, and so do
    its arguments; every tensor in them gets its gradient. What it changes is lost, except for the
    buffers of Modules: return what the caller needs.

    Args:
        fn: any callable: a function, a lambda, a Module.
        iterables: the arguments, one from each for a call; they are read to their end first.
        shared: further arguments of every call, which travel once: a model, parameters, data. A
            mapping gives keywords.
        out: "list" gives the results in order. "sum" adds them, from the first to the last: equal
            trees of tensors and numbers.
        chunks: in how many pieces the items are handed out; for a sum the bits depend on it.
            Default: one for each item, at most 128.
        changes: names of attributes that ``fn`` may change on what it reaches although that is
            lost (a cache). What else it changes, beside its result and Modules' buffers, is
            compared in the first calls, and in ever fewer later ones.
        retries: how often an item that raises an Exception is tried again at once, for what may
            fail by chance: a file system, a service. Each attempt begins alike, with the same
            random numbers, so the bits do not depend on how many there were.

    Returns:
        The list of results, or their sum.

    Raises:
        ValueError: the iterables differ in length; a sum of no items; an unknown ``out``; or
            ``chunks`` is not positive; or ``retries`` is negative.
        TypeError: something cannot be pickled (the error names it), or a sum of unequal results.
        RuntimeError: ``fn`` has changed something that would be lost.
        BaseException: what the first call that raises has raised, with a note that names its item.
    """
    return map_of(LIBRARY, fn, iterables, shared, out, chunks, changes, retries)


def map_of(
    library: ArrayLibrary,
    fn: Callable[..., Any],
    iterables: Sequence[Iterable[Any]],
    shared: Sequence[Any] | Mapping[str, Any],
    out: str,
    chunks: int | None,
    changes: Sequence[str],
    retries: int,
) -> Any:
    """``parallel_map`` for the tensors of ``library``."""
    if out not in ("list", "sum"):
        raise ValueError(f"out must be 'list' or 'sum', not {out!r}")
    if chunks is not None and chunks < 1:
        raise ValueError(f"chunks must be at least 1, not {chunks}")
    if retries < 0:
        raise ValueError(f"retries must be at least 0, not {retries}")
    if not callable(fn):
        raise TypeError(f"fn must be callable, not {type(fn).__name__}")
    if not iterables:
        raise TypeError("parallel_map() needs at least one iterable")
    items = _items(iterables)
    if not isinstance(shared, Sequence | Mapping) or isinstance(shared, str):
        raise TypeError(
            f"shared must be a sequence of arguments, or a mapping of keywords, not "
            f"{type(shared).__name__}: write shared=(x,) for one"
        )
    positional: tuple[Any, ...] = () if isinstance(shared, Mapping) else tuple(shared)
    keywords = dict(shared) if isinstance(shared, Mapping) else {}
    is_sum = out == "sum"
    if not items:
        if is_sum:
            raise ValueError("parallel_map(out='sum') of no items has no result")
        return []
    pieces = _pieces(len(items), chunks)
    if engine_slot.is_inside_rule():
        return _inline(library, fn, items, positional, keywords, pieces, is_sum, retries)
    made = CallsOfMap(
        library,
        fn,
        items,
        positional,
        keywords,
        pieces,
        is_sum=is_sum,
        changes=frozenset(changes),
        retries=retries,
    )
    results = made.run()
    if not is_sum:
        return results
    total = results[0]
    for other in results[1:]:
        total = sum_of(total, other, made.name, library)
    return total


def _items(iterables: Sequence[Iterable[Any]]) -> list[tuple[Any, ...]]:
    """The arguments of each call. The iterables are read side by side: one may be endless."""
    try:
        return list(zip(*iterables, strict=True))
    except ValueError as error:
        if str(error).startswith("zip() argument"):
            error.add_note("what all calls share belongs in shared=(x,), not in repeat(x)")
        raise


def map_with_first_buffers(
    fn: Callable[..., Any], items: list[tuple[Any, ...]], library: ArrayLibrary = LIBRARY
) -> list[Any]:
    """``parallel_map`` for parts of one batch: Modules' buffers keep what item 0 has left."""
    pieces = _pieces(len(items), None)
    if engine_slot.is_inside_rule():
        return list(_inline(library, fn, items, (), {}, pieces, False))
    return CallsOfMap(
        library, fn, items, (), {}, pieces, is_sum=False, are_buffers_of_first=True
    ).run()


def require_equal_parts(arguments: Any, parts: int, dim: int, library: ArrayLibrary) -> None:
    """Check that all tensors in tuples, lists and dictionaries give equally many parts along
    ``dim``: the rows of a part without partners would be lost.

    Raises:
        ValueError: they do not.
    """
    sizes = [*_sizes(arguments, dim, library.tensor_class)]
    counts = [-(-size // -(-size // parts)) if size else 0 for size in sizes]
    if len({*counts}) > 1:
        raise ValueError(
            f"DataParallel cuts all tensors among its arguments along dimension {dim}, where they "
            f"have {', '.join(map(str, sizes))} rows, which gives {', '.join(map(str, counts))} "
            "parts. Give what belongs to no row to the Module, or expand() it"
        )


def _sizes(value: Any, dim: int, tensor: type[Any]) -> Iterator[int]:
    """The length along ``dim`` of each tensor in ``value``."""
    if isinstance(value, tensor):
        yield value.shape[dim]
    elif isinstance(value, tuple | list | dict):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _sizes(child, dim, tensor)


def _pieces(count: int, chunks: int | None) -> list[range]:
    """The items of each chunk: pieces of equal length, but for one item."""
    number = min(chunks or CHUNKS, count)
    ends = [count * (k + 1) // number for k in range(number)]
    return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def _tried(fn: Callable[..., Any], retries: int, *args: Any, **keywords: Any) -> Any:
    """What ``fn`` returns, in a branch: a new attempt finds what the one before has left."""
    for _ in range(retries):
        with suppress(Exception):
            return fn(*args, **keywords)
    return fn(*args, **keywords)


def _inline(
    library: ArrayLibrary,
    fn: Callable[..., Any],
    items: list[tuple[Any, ...]],
    positional: tuple[Any, ...],
    keywords: dict[str, Any],
    pieces: list[range],
    is_sum: bool,
    retries: int = 0,
) -> Any:
    """Inside a branch: the calls one after another, as a part of it."""
    results = [_tried(fn, retries, *item, *positional, **keywords) for item in items]
    if not is_sum:
        return results
    name, sums = name_of(fn), []
    for piece in pieces:
        total = results[piece[0]]
        for at in piece[1:]:
            total = sum_of(total, results[at], name, library)
        sums.append(total)
    total = sums[0]
    for other in sums[1:]:
        total = sum_of(total, other, name, library)
    return total
