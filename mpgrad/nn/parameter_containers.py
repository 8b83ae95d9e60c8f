"""Containers of Parameters: in a list (ParameterList), by name (ParameterDict)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

from mpgrad.nn.module import Module
from mpgrad.nn.parameter import Parameter
from mpgrad.recording.tensors.tensor import Tensor


class _ParameterContainer(Module):
    """Values by name; Tensors become Parameters, other values are kept unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, Any] = {}

    def _store(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and not isinstance(value, Parameter):
            value = Parameter(value)
        if isinstance(value, Parameter):
            self.register_parameter(name, value)
            value = None
        else:
            self._parameters.pop(name, None)
        self._values[name] = value

    def _stored(self, name: str) -> Any:
        parameter = self._parameters.get(name)
        return self._values[name] if parameter is None else parameter

    def _forget(self, name: str) -> Any:
        value = self._stored(name)
        del self._values[name]
        self._parameters.pop(name, None)
        return value

    def __len__(self) -> int:
        return len(self._values)

    def extra_repr(self) -> str:
        return "\n".join(f"  ({name}): {_described(self._stored(name))}" for name in self._values)

    def __repr__(self) -> str:
        rows = self.extra_repr().replace("\n", "\n  ")
        return f"{type(self).__name__}(\n  {rows}\n)" if rows else f"{type(self).__name__}()"


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"Object of type: {type(value).__name__}"
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    place = f" ({value.device})" if value.is_cuda else ""
    return f"{kind} containing: [{value.dtype} of size {'x'.join(map(str, value.shape))}{place}]"


class ParameterList(_ParameterContainer):
    """A list of Parameters that the Module finds.

    Args:
        values: Tensors, which become Parameters, or other values, which are only kept.
    """

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.extend(values or ())

    def __iter__(self) -> Iterator[Any]:
        return iter([self._stored(name) for name in self._values])

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self)[index])
        return self._stored(self._name(index))

    def __setitem__(self, index: int, value: Any) -> None:
        self._store(self._name(index), value)

    def _name(self, index: int) -> str:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range")
        return str(index % len(self))

    def append(self, value: Any) -> ParameterList:
        """Add ``value`` at the end and return self."""
        self._store(str(len(self)), value)
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add ``values`` at the end and return self.

        Raises:
            TypeError: ``values`` is one Tensor, or nothing that can be walked.
        """
        if isinstance(values, Tensor) or not isinstance(values, Iterable):
            raise TypeError(
                "ParameterList.extend should be called with an iterable, but got "
                f"{type(values).__name__}"
            )
        for value in values:
            self.append(value)
        return self

    __iadd__ = extend


class ParameterDict(_ParameterContainer):
    """Parameters by name, in the order in which they came; those of a plain dictionary by name.

    Args:
        parameters: a mapping, or pairs of names and values.
    """

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        if parameters is not None:
            self.update(parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __getitem__(self, key: str) -> Any:
        return self._stored(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._store(key, value)

    def __delitem__(self, key: str) -> None:
        self._forget(key)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def keys(self) -> Any:
        """The names."""
        return self._values.keys()

    def values(self) -> list[Any]:
        """The Parameters and other values."""
        return [self._stored(name) for name in self._values]

    def items(self) -> list[tuple[str, Any]]:
        """Names and values."""
        return [(name, self._stored(name)) for name in self._values]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of ``key``, or ``default``."""
        return self._stored(key) if key in self else default

    def pop(self, key: str) -> Any:
        """Remove ``key`` and return its value."""
        return self._forget(key)

    def clear(self) -> None:
        """Remove all."""
        for key in list(self):
            self._forget(key)

    def update(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Add ``parameters``; they replace those with the same names.

        Those of a mapping without an order of its own come sorted by name, as PyTorch's: the
        numbers in the state of an optimizer depend on it.
        """
        pairs: Iterable[tuple[str, Any]]
        if isinstance(parameters, OrderedDict | ParameterDict):
            pairs = parameters.items()
        elif isinstance(parameters, Mapping):
            pairs = sorted(parameters.items(), key=itemgetter(0))
        else:
            pairs = parameters
        for key, value in pairs:
            self[key] = value
