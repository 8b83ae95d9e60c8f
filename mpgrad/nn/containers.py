"""Containers of Modules: in a row (Sequential), in a list (ModuleList), by name (ModuleDict)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mpgrad.nn.module import Module


class _Row(Module):
    """Children named "0", "1", ...: what both containers are."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __getitem__(self, index: int | slice) -> Any:
        values = list(self._modules.values())
        if isinstance(index, slice):
            return self._of(list(self._modules.items())[index])
        try:
            return values[index]
        except IndexError:
            raise IndexError(f"index {index} is out of range") from None

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, list(self._modules)[index], module)

    def _of(self, items: list[tuple[str, Any]]) -> Any:
        raise NotImplementedError

    def append(self, module: Module) -> Any:
        """Add ``module`` at the end and return self."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Any:
        """Add ``modules`` at the end and return self."""
        for module in modules:
            self.append(module)
        return self


class Sequential(_Row):
    """Each Module gets the output of the one before it.

    Args:
        modules: in order; or one dict of names and Modules.
    """

    def __init__(self, *modules: Module | dict[str, Module]) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], dict):
            named = modules[0].items()
        else:
            named = {str(k): module for k, module in enumerate(modules)}.items()  # type: ignore[assignment]
        for name, module in named:
            if not isinstance(module, Module):
                raise TypeError(f"{type(module).__name__} is not a Module subclass")
            self.add_module(name, module)

    def forward(self, input: Any) -> Any:
        """The last Module's output."""
        output = input
        for module in self:
            output = module(output)
        return output

    def _of(self, items: list[tuple[str, Any]]) -> Sequential:
        return Sequential(dict(items))


class ModuleList(_Row):
    """A list of Modules whose Parameters are found; it has no ``forward``."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def _of(self, items: list[tuple[str, Any]]) -> ModuleList:
        return ModuleList(module for _, module in items)


class ModuleDict(Module):
    """Modules by name, in the order in which they came; it has no ``forward``.

    Args:
        modules: a mapping, or pairs of names and Modules.
    """

    def __init__(
        self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None
    ) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def keys(self) -> Any:
        """The names."""
        return self._modules.keys()

    def values(self) -> Any:
        """The Modules."""
        return self._modules.values()

    def items(self) -> Any:
        """Names and Modules."""
        return self._modules.items()

    def clear(self) -> None:
        """Remove all."""
        self._modules.clear()

    def pop(self, key: str) -> Any:
        """Remove ``key`` and return its Module."""
        return self._modules.pop(key)

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add ``modules``; they replace those with the same names.

        Raises:
            TypeError: they are neither a mapping nor pairs.
        """
        if not isinstance(modules, Iterable):
            raise TypeError(
                "ModuleDict.update should be called with an iterable of key/value pairs, but got "
                f"{type(modules).__name__}"
            )
        pairs = modules if not isinstance(modules, Mapping | ModuleDict) else modules.items()
        for key, module in pairs:
            self[key] = module
