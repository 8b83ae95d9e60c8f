"""Public names that load their module on first use (PEP 562), for a package's ``__init__``.

Importing any submodule runs ``mpgrad/__init__``. It must be cheap: the coordinator never loads
NumPy, and a worker sets its environment before it does.
"""

from __future__ import annotations

import gc
import importlib
import sys
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any

from mpgrad.base.missing_names import missing


def attach(
    package: str,
    home: Mapping[str, str],
    *,
    submodules: Collection[str] = (),
    first: str | None = None,
    not_for: Collection[str] = (),
    finish: str | None = None,
    called: str | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a lazy package.

    Args:
        package: the package's ``__name__``.
        home: public name -> the module that defines it.
        submodules: public names that are modules of the package themselves.
        first: a module to import before any other module ...
        not_for: ... except these.
        finish: a module whose ``public(value, name)`` returns the public value, for the others.
        called: the name of the package in errors; its own name by default.
    """
    module = sys.modules[package]
    module.__class__ = _guarded(frozenset(home))

    def __getattr__(name: str) -> Any:
        if name not in home and name not in submodules:
            raise missing(called or package, name)
        target = home.get(name) or f"{package}.{name}"
        value = _load(target, first if target not in not_for else None)
        if name in home:
            value = getattr(value, name)
            if finish is not None and target not in not_for:
                value = _load(finish, None).public(value, name)
        # Kept, so that the next access does not call this function.
        vars(module)[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(module), *home, *submodules})

    return __getattr__, __dir__


def _load(target: str, first: str | None) -> Any:
    """Import both, without the cyclic garbage collector.

    Loading makes hardly any garbage, but so many objects that the collector would walk all modules
    a dozen times; and once more afterwards, were they not moved to the oldest generation.
    """
    if target in sys.modules and (first is None or first in sys.modules):
        return importlib.import_module(target)  # loaded; the freeze count walks all that is frozen
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        if first is not None:
            importlib.import_module(first)
        return importlib.import_module(target)
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # else the program's own frozen objects would thaw
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _guarded(public: frozenset[str]) -> type[types.ModuleType]:
    """A module type in which a submodule does not hide the public name that it shares.

    ``mpgrad.autograd.backward`` is a file and a function, as in PyTorch: the import system binds a
    loaded submodule to its package, and would replace the function by the file.
    """

    class LazyPackage(types.ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            if isinstance(value, types.ModuleType) and name in public:
                return
            super().__setattr__(name, value)

        # cloudpickle pickles modules by name, but only if they have exactly the module type.
        def __reduce__(self) -> tuple[Callable[[str], types.ModuleType], tuple[str]]:
            return importlib.import_module, (self.__name__,)

    return LazyPackage
