"""ReachedState: what a function reaches beside tensors, before and after a call.

A call runs on copies, so what it changes there would be lost without a word. The values are
compared, not their pickles, which change with identities.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import sys
import types
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpgrad.calls.custom_functions.generated_members import OF_ENUM
from mpgrad.calls.custom_functions.process_state import is_installed_namespace
from mpgrad.calls.inner_imports import imported_by
from mpgrad.calls.random_numbers import state_of
from mpgrad.wire.code_pickles import names_in

#: Where a value is, in words: names and keys on the way to it.
Path: TypeAlias = tuple[str, ...]

#: The number of values that are looked at, and the bytes of an array.
VALUES_MAX, ARRAY_BYTES_MAX = 200_000, 16 << 20

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (dict, list, tuple, set, frozenset)
#: What Python keeps in classes, and SciPy in sparse matrices until it has looked at them.
_OF_CLASSES = OF_ENUM | {"_abc_impl"}
_OF_SPARSE = {"_has_canonical_format", "_has_sorted_indices"}
_CODE = (type, types.FunctionType, types.MethodType, types.ModuleType, functools.partial)
#: Objects that never change, or whose changes are no result.
_PASSED_OVER = (
    types.BuiltinFunctionType,
    types.CodeType,
    functools._lru_cache_wrapper,
    functools.cached_property,
    logging.Logger,
)


class Change(NamedTuple):
    """What is another now.

    Attributes:
        path: where, in words.
        name: the last name on the way to it, for ``allowed``.
        is_generator: whether random numbers were drawn from it.
    """

    path: str
    name: str
    is_generator: bool

    @classmethod
    def at(cls, path: Path, is_generator: bool) -> Change:
        """What is at the end of ``path``."""
        names = [name for name in path if name.isidentifier()]
        return cls(_in_words(path), names[-1] if names else "", is_generator)


class ReachedState:
    """The values that are reached from ``root``, as they are now.

    Args:
        root: the function, and what it gets.
        allowed: names of attributes that may change.
        tensor: the class of tensors, whose elements are not looked at.
    """

    def __init__(self, root: Any, allowed: frozenset[str], tensor: type[Any]) -> None:
        self._allowed, self._tensor = allowed, tensor
        #: Private attributes of libraries' objects that have a value; None: it is not known yet.
        self._filled: set[Path] | None = None
        self._modules = frozenset(sys.modules)
        self._values = self._by_path(root)

    def what_changed(self, root: Any) -> Change | None:
        """One value that is another now; None if there is none."""
        now = self._by_path(root)
        for place, value in now.items():
            if place not in self._values or self._values[place] != value:
                is_generator = isinstance(value, tuple) and value[0] == "generator"
                return Change.at(place[0], is_generator)
        gone = [place for place in self._values if place not in now]
        return Change.at(gone[0][0], False) if gone else None

    def _by_path(self, root: Any) -> dict[tuple[Path, int], Any]:
        """The values by their paths; several have the same path, so each has a number, too."""
        counts, found = Counter[Path](), dict[tuple[Path, int], Any]()
        filled = set[Path]()
        for path, value in self._walk(root, filled):
            found[path, counts[path]] = value
            counts[path] += 1
        self._filled = filled if self._filled is None else self._filled
        return found

    def _walk(self, root: Any, filled: set[Path]) -> Iterator[tuple[Path, Any]]:
        # The nearest ones first, so that errors have the shortest path.
        waiting = deque[tuple[Path, Any]]([((), root)])
        #: By identity, with the objects, so that no other one gets their address.
        seen: dict[int, Any] = {}
        while waiting and len(seen) < VALUES_MAX:
            path, value = waiting.popleft()
            if isinstance(value, _PLAIN):
                yield path, value if value == value else "nan"
                continue
            if isinstance(value, _PASSED_OVER) or id(value) in seen:
                continue
            seen[id(value)] = value
            is_tensor = isinstance(value, self._tensor)
            yield path, ("tensor", id(value)) if is_tensor else _token(value)
            is_library = not is_tensor and _is_of_library(type(value))
            if is_library and type(value).__module__.startswith("torch._dynamo"):
                continue  # what torch.compile keeps of code
            if isinstance(value, types.FunctionType):
                waiting.extend([((*path, name), child) for name, child in self._imported(value)])
            for name, child in list(vars(value).items()) if is_tensor else _parts(value):
                if name in self._allowed or (is_tensor and name.startswith("_dynamo_")):
                    continue
                place = (*path, name)
                if is_library and name[:1] == "_":
                    # What a library computes when it is asked the first time, and keeps.
                    if child is None or (self._filled is not None and place not in self._filled):
                        continue
                    filled.add(place)
                if not (is_library and "cache" in name):
                    waiting.append((place, child))

    def _imported(self, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        """What a function names in modules that it imports when it runs, if they were there."""
        for home, module in imported_by(function).items():
            if home in self._modules:
                names = [name for name in names_in(function.__code__) if name in vars(module)]
                yield from ((one, vars(module)[one]) for one in names if one not in self._allowed)


def _is_of_library(cls: type[Any]) -> bool:
    """Whether it is a class of an installed package that keeps data in attributes."""
    module = sys.modules.get(cls.__module__)
    is_installed = module is not None and is_installed_namespace(vars(module))
    return is_installed and not issubclass(cls, (*_CONTAINERS, *_CODE))


def _token(value: Any) -> Any:
    """What a value is, without its parts."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject or value.nbytes > ARRAY_BYTES_MAX:
            return "array", value.shape
        return "array", value.shape, value.dtype.str, np.asarray(value).tobytes()
    if (state := state_of(value)) is not None:
        return "generator", repr(state)
    if isinstance(value, _CONTAINERS):
        return type(value).__name__, _own(value).__len__(value)
    return type(value).__qualname__


def _own(container: Any) -> Any:
    """Python's class of a container, whose methods do what those of a subclass may not."""
    return next(cls for cls in _CONTAINERS if isinstance(container, cls))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _CONTAINERS):
        yield from list(getattr(value, "__dict__", {}).items())  # of a subclass
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            yield from ((f"[{at}]", child) for at, child in enumerate(value.flat))
    elif isinstance(value, dict):
        for key, child in list(dict.items(value)):
            yield (f"[{key!r}]" if not isinstance(key, str) else key), child
    elif isinstance(value, list | tuple):
        for number, child in enumerate(_own(value).__iter__(value)):
            yield f"[{number}]", child
    elif isinstance(value, set | frozenset):
        for child in _own(value).__iter__(value):
            if _is_plain(child):
                yield f"{{{child!r}}}", None
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, types.MethodType):
        yield "__self__", value.__self__
        yield "", value.__func__
    elif isinstance(value, contextvars.ContextVar):
        yield "", value.get(None)
    elif isinstance(value, type):
        yield from _parts_of_class(value)
    elif isinstance(value, functools.partial):
        yield "", (value.func, value.args, value.keywords)
    elif isinstance(value, types.ModuleType):
        if not is_installed_namespace(vars(value)):
            yield from ((name, child) for name, child in vars(value).items() if name[:2] != "__")
    elif type(value).__reduce__ is not object.__reduce__:
        yield from _parts_of_pickle(value)
    elif type(found := getattr(value, "__dict__", None)) is dict:
        yield type(value).__name__, type(value)
        computed = _computed(value)
        yield from ((name, child) for name, child in list(found.items()) if name not in computed)
    else:
        yield from _parts_of_pickle(value)


def _is_plain(value: Any) -> bool:
    """Whether a member of a set has a form in words that tells it from others."""
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _parts_of_class(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    """The data of a class of the user's and of its bases, and what its methods reach."""
    module = sys.modules.get(cls.__module__)
    if module is not None and is_installed_namespace(vars(module)):
        return
    yield from ((f"its base {base.__name__}", base) for base in cls.__bases__)
    for name, child in vars(cls).items():
        if functions := _functions_of(child):
            yield from ((f"{name}()", function) for function in functions)
        elif name[:2] != "__" and name not in _OF_CLASSES and not hasattr(child, "__get__"):
            yield name, child


def _functions_of(member: Any) -> list[types.FunctionType]:
    """The functions behind a method, a property and their like."""
    found = [getattr(member, name, None) for name in ("__func__", "func", "fget", "fset", "fdel")]
    return [one for one in (member, *found) if isinstance(one, types.FunctionType)]


def _computed(value: Any) -> set[str]:
    """The attributes that are computed anew from others whenever they are needed."""
    names = {
        name
        for cls in type(value).__mro__
        for name, one in vars(cls).items()
        if isinstance(one, functools.cached_property)
    }
    if type(value).__module__.startswith("scipy.sparse."):
        names |= _OF_SPARSE
    hooks = vars(value).get("_forward_pre_hooks")  # of a Module; weight_norm and spectral_norm
    if hooks is None and hasattr(type(value), "_forward_pre_hooks"):
        hooks = value._forward_pre_hooks
    if hooks is not None:
        names.update([_set_by(getattr(hook, "hook", hook)) for hook in hooks.values()])
    return names


def _set_by(hook: Any) -> str:
    """The attribute of its Module that a hook sets before each forward; PyTorch's do not say that
    they do."""
    if any(cls.__module__.startswith("torch.nn.utils.") for cls in type(hook).__mro__):
        return str(getattr(hook, "name", None) or getattr(hook, "_tensor_name", ""))
    return hook.name if getattr(hook, "computes_before_forward", False) else ""


def _parts_of_pickle(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, as pickle sees it: slots, frames of pandas, iterators."""
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:
        return
    if not isinstance(reduced, tuple):
        return
    _, args, *rest = reduced
    state = rest.pop(0) if rest else None
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
        yield from list(state[1].items())  # slots
    else:
        yield "", state
    yield "", (args, *[list(one) for one in rest[:2] if one is not None])


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if is_installed_namespace(function.__globals__):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue
    yield "its defaults", (function.__defaults__, function.__kwdefaults__)
    yield from ((name, child) for name, child in vars(function).items())
    for name in names_in(function.__code__):
        if name in function.__globals__ and name[:2] != "__":
            yield name, function.__globals__[name]


def _in_words(path: Path) -> str:
    words = ""
    for name in path:
        if name in ("", "__wrapped__"):
            continue
        words += name if name.startswith(("[", "{")) or not words else f".{name}"
    return words or "what it reaches"
