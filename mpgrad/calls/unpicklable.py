"""why_it_does_not_travel(): the error for what cannot be pickled, with the path to it."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: The depth of the search, and the number of things that are tried.
DEPTH, TRIED_MAX = 8, 10_000


def why_it_does_not_travel(
    error: Exception,
    roots: Mapping[str, Any],
    travels: Callable[[Any], bool],
    *,
    what: str = "what a call reaches cannot travel to a worker",
    remedy: str = "Make it inside the function, or pass what it is made of (a path, a seed, an "
    "address)",
) -> TypeError:
    """The TypeError to raise for ``error``, which came when ``roots`` were pickled.

    Args:
        error: of the pickling.
        roots: what was pickled, by its names.
        travels: whether a thing alone can be pickled.
        what, remedy: words of the message.
    """
    search = _Search(travels)
    for name, root in roots.items():
        path = search.path_to_culprit(root, name, 0)
        if path:
            return TypeError(f"{what}: {error}. It is at {path}. {remedy}")
    return TypeError(f"{what}: {error}. {remedy}")


class _Search:
    """Looks for what cannot be pickled; each thing is tried once."""

    def __init__(self, travels: Callable[[Any], bool]) -> None:
        self._travels = travels
        #: By identity, with the things, so that no other one gets their address.
        self._tried: dict[int, Any] = {}

    def path_to_culprit(self, value: Any, path: str, depth: int) -> str:
        """Where, from ``value`` on, the culprit is; empty: nothing is wrong."""
        if id(value) in self._tried or len(self._tried) >= TRIED_MAX:
            return ""
        self._tried[id(value)] = value
        if self._travels(value):
            return ""
        if depth < DEPTH:
            for name, child in _children(value):
                found = self.path_to_culprit(child, f"{path}{name}", depth + 1)
                if found:
                    return found
        return f"{path.lstrip('.') or 'the value itself'} ({type(value).__qualname__})"


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, child in dict.items(value):
            yield (f".{key}" if isinstance(key, str) else f"[{key!r}]"), child
    elif isinstance(value, list | tuple | set | frozenset):
        own: Any = next(one for one in (list, tuple, set, frozenset) if isinstance(value, one))
        for number, child in enumerate(own.__iter__(value)):
            yield f"[{number}]", child
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _children_of_function(value)
    elif isinstance(value, type):
        yield from ((f".{name}", child) for name, child in vars(value).items())
    elif type(found := getattr(value, "__dict__", None)) is dict:
        yield from ((f".{name}", child) for name, child in found.items())
        yield f" -> class {type(value).__qualname__}", type(value)


def _children_of_function(value: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        try:
            yield f".{variable}", cell.cell_contents
        except ValueError:
            continue
    names: list[str] = []
    codes = [value.__code__]
    while codes:
        code = codes.pop()
        names.extend(code.co_names)
        codes.extend([one for one in code.co_consts if isinstance(one, types.CodeType)])
    for variable in names:
        if variable in value.__globals__:
            yield f".{variable}", value.__globals__[variable]
    yield "'s defaults", (value.__defaults__, value.__kwdefaults__)
