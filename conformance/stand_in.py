"""``torch`` stands for mpgrad: what is imported from below ``torch`` is mpgrad's of that name.

A name that mpgrad lacks can be imported; whoever uses it gets a :class:`MissingName`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import mpgrad


class MissingName(AttributeError):
    """A test uses a name that mpgrad lacks; the text is that name."""


class _Missing:
    """In place of a name that mpgrad lacks."""

    def __init__(self, name: str) -> None:
        self.__dict__["_missing"] = name

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise MissingName(self._missing)

    __call__ = __getitem__ = __enter__ = __iter__ = __instancecheck__ = __bool__ = __or__ = _refuse
    __setattr__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        raise MissingName(f"{self._missing}.{name}")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return ()


class StandIn(types.ModuleType):
    """The module ``torch`` or one below it."""

    def __init__(
        self, name: str, target: types.ModuleType | None, given: Callable[[str], Any]
    ) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self._target, self._given = target, given

    def __getattr__(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        given = self._given(full)
        if given is not None:
            return given
        if name == "torch":  # what a module of PyTorch has imported
            return importlib.import_module("torch")
        if name.startswith("__"):
            raise AttributeError(name)
        found = _found(self._target, name)
        if isinstance(found, types.ModuleType) and found.__name__.startswith("mpgrad"):
            return importlib.import_module(full)
        return _Missing(full) if found is None else found


def _found(target: types.ModuleType | None, name: str) -> Any:
    """``target.name``, as an attribute or as a module of its own; None if there is neither."""
    found = getattr(target, name, None)
    return _module(f"{target.__name__}.{name}") if found is None and target is not None else found


def _module(name: str) -> types.ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes a :class:`StandIn` of every module below ``torch``."""

    def __init__(self, given: Callable[[str], Any]) -> None:
        self._given = given

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "torch":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        below = spec.name.partition(".")[2]
        return StandIn(spec.name, _module(f"mpgrad.{below}") if below else mpgrad, self._given)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


@contextmanager
def torch_stands_for_mpgrad(given: Callable[[str], Any]) -> Iterator[None]:
    """Inside, ``import torch`` gives mpgrad.

    Args:
        given: tells what stands for a full name, ``torch.testing...``, before it is looked up in
            mpgrad; None: nothing does.
    """
    real = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "torch"}
    for name in real:
        del sys.modules[name]
    finder = _Finder(given)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] == "torch"]:
            del sys.modules[name]
        sys.modules.update(real)
