"""StandIn: modules under PyTorch's names, which look their names up in mpgrad."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from mpgrad.base.missing_names import missing
from mpgrad.compat import places

#: The import path of these modules in every process.
ROOT = "mpgrad.compat.torch"
#: Where a child process finds ``torch``: it has this process's sys.path, not its finders.
_FOR_CHILDREN = os.path.join(os.path.dirname(__file__), "for_children")


class StandIn(ModuleType):
    """A module of PyTorch's names, which are looked up in mpgrad when they are used.

    Args:
        path: below ``torch``: ``nn.functional``; empty for ``torch``.
    """

    def __init__(self, path: str) -> None:
        self._targets = places.modules(path)
        super().__init__(f"{ROOT}.{path}".rstrip("."), self._targets[-1].__doc__)
        self._path = path
        self.__path__: list[str] = []
        self.__file__ = __file__

    def __getattr__(self, name: str) -> Any:
        value = self._found(name)
        # Kept, so that the next use does not call this function.
        vars(self)[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Python sets a module after its import: it does not hide a function of that name.
        if isinstance(value, StandIn) and not isinstance(self._found(name), ModuleType):
            return
        super().__setattr__(name, value)

    def _found(self, name: str) -> Any:
        for target in self._targets:
            value = getattr(target, name, self)
            if value is not self and not isinstance(value, ModuleType):
                return value
        below = f"{self._path}.{name}".lstrip(".")
        if not name.startswith("__") and places.modules(below):
            return importlib.import_module(f"{ROOT}.{below}")
        raise AttributeError(
            f"module 'torch{self._path and '.'}{self._path}' has no attribute {name!r}"
            f"{_why(self._path, name)}",
            name=name,
        )

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *(name for target in self._targets for name in dir(target))})


def _why(path: str, name: str) -> str:
    """mpgrad's message about a missing name, from the colon on; empty for an unknown name."""
    said = str(missing(f"mpgrad.{path}".rstrip("."), name))
    return "".join(said.partition(": ")[1:])


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes a :class:`StandIn` of every module below ``root``.

    Args:
        root: the name for ``torch``. Modules below another name than ROOT are those of ROOT.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.root and not name.startswith(f"{self.root}."):
            return None
        below = self._below(name)
        if not places.modules(below):
            # Python also looks for a module after `from torch import name`. The error has no
            # `name`: Python would treat the module as optional, and give a shorter message.
            parent, _, last = below.rpartition(".")
            why = _why(parent, last) or ": mpgrad has no such name"
            raise ModuleNotFoundError(f"cannot import torch.{below}{why}")
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        if self.root == ROOT:
            return StandIn(self._below(spec.name))
        module = importlib.import_module(f"{ROOT}.{self._below(spec.name)}".rstrip("."))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None and spec.loader_state is not None:
            module.__spec__ = spec.loader_state  # that of its own name

    def _below(self, name: str) -> str:
        return name.removeprefix(self.root).lstrip(".")


def install() -> None:
    """Make ``import torch`` import mpgrad, for the rest of this process, and in those that
    multiprocessing starts."""
    if not any(isinstance(it, _Finder) and it.root == "torch" for it in sys.meta_path):
        sys.meta_path.insert(0, _Finder("torch"))
    if _FOR_CHILDREN not in sys.path:
        sys.path.insert(0, _FOR_CHILDREN)


sys.meta_path.insert(0, _Finder(ROOT))
