"""Containers of Modules: in a row (Sequential), in a list (ModuleList), by name (ModuleDict)."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mpgrad.nn.module import Module
from mpgrad.recording.tensors.of_pytorch import kind_of


class _Row(Module):
    """Children named "0", "1", ...: what both containers are."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._of(list(self._modules.items())[index])
        return self._modules[self._name_at(index)]

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, self._name_at(index), module)

    def __delitem__(self, index: int | slice) -> None:
        kept = list(self)
        if not isinstance(index, slice):
            self._name_at(index)  # which may be out of range
        del kept[index]
        self._number(kept)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.isdigit()]

    def _name_at(self, index: Any) -> str:
        index = operator.index(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range")
        return list(self._modules)[index]

    def _number(self, modules: list[Module]) -> None:
        """Have these children, named by their places."""
        self._modules.clear()
        self._modules.update({str(at): module for at, module in enumerate(modules)})

    def _of(self, items: list[tuple[str, Any]]) -> Any:
        raise NotImplementedError

    def append(self, module: Module) -> Any:
        """Add ``module`` at the end and return self."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Any:
        """Add ``modules`` at the end and return self.

        Raises:
            TypeError: they cannot be iterated over.
        """
        if not isinstance(modules, Iterable):
            raise TypeError(
                f"{type(self).__name__}.extend should be called with an iterable, but got "
                f"{type(modules).__name__}"
            )
        for module in list(modules):
            self.append(module)
        return self

    def __iadd__(self, modules: Iterable[Module]) -> Any:
        return self.extend(modules)

    def insert(self, index: int, module: Module) -> Any:
        """Put ``module`` before the one at ``index``, and return self."""
        modules = list(self)
        modules.insert(index, module)
        self._number(modules)
        return self

    def pop(self, index: int | slice) -> Any:
        """Remove the Module at ``index``, and return it."""
        found = self[index]
        del self[index]
        return found


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
                raise TypeError(f"{kind_of(module)} is not a Module subclass")
            self.add_module(name, module)

    def forward(self, input: Any) -> Any:
        """The last Module's output."""
        output = input
        for module in self:
            output = module(output)
        return output

    def _of(self, items: list[tuple[str, Any]]) -> Any:
        return type(self)(dict(items))

    def insert(self, index: int, module: Module) -> Sequential:
        """Put ``module`` before the one at ``index``, and return self.

        Raises:
            IndexError: there is no such place.
        """
        if not isinstance(module, Module):
            raise AssertionError(f"module should be of type: {Module}")
        if not -len(self) <= index <= len(self):
            raise IndexError(f"Index out of range: {index}")
        super().insert(index, module)
        return self

    def __add__(self, other: Sequential) -> Sequential:
        if not isinstance(other, Sequential):
            raise ValueError(
                "add operator supports only objects of Sequential class, but "
                f"{type(other)} is given."
            )
        return Sequential(*self, *other)

    def __iadd__(self, other: Any) -> Any:  # type: ignore[misc]
        if not isinstance(other, Sequential):
            raise ValueError(
                "add operator supports only objects of Sequential class, but "
                f"{type(other)} is given."
            )
        return self.extend(other)

    def __mul__(self, count: int) -> Sequential:
        return Sequential(*self._times(count))

    __rmul__ = __mul__

    def __imul__(self, count: int) -> Any:
        self._number(self._times(count))
        return self

    def _times(self, count: int) -> list[Module]:
        if not isinstance(count, int):
            raise TypeError(f"unsupported operand type(s) for *: {type(self)} and {type(count)}")
        if count <= 0:
            raise ValueError(f"Non-positive multiplication factor {count} for {type(self)}")
        return list(self) * count


class ModuleList(_Row):
    """A list of Modules whose Parameters are found; it has no ``forward``."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def _of(self, items: list[tuple[str, Any]]) -> Any:
        return type(self)(module for _, module in items)

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __repr__(self) -> str:
        """Equal neighbours are shown once."""
        rows = []
        for text, same in itertools.groupby(enumerate(map(repr, self)), lambda item: item[1]):
            places = [place for place, _ in same]
            first, last = places[0], places[-1]
            which = f"({first})" if first == last else f"({first}-{last}): {len(places)} x"
            rows.append(f"{which}{':' if first == last else ''} {text}".replace("\n", "\n  "))
        if not rows:
            return f"{type(self).__name__}()"
        return f"{type(self).__name__}(\n  " + "\n  ".join(rows) + "\n)"


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
            raise TypeError(f"{kind_of(module)} is not a Module subclass")
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
