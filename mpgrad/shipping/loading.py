"""load(): makes a custom Function's class of the bytes from ``decision``, in a worker."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from mpgrad.autograd.function import Function
from mpgrad.shipping.constants import MISSING, same
from mpgrad.tensors.tensor import Tensor

#: Constants of installed modules in the sending process, by module and name.
Settings = dict[tuple[str, str], Any]


class Loaded(NamedTuple):
    """A Function, the settings for each of its runs, and classes of values on its ctx."""

    function: type[Function]
    settings: Settings
    held: tuple[type, ...]


def load(blob: bytes) -> type[Function]:
    """The Function class in ``blob``: a new class at each call, so keep it by its ``code_id``.

    Raises:
        TypeError: the blob holds something else.
    """
    return load_all(blob).function


def load_all(blob: bytes) -> Loaded:
    """As ``load``, with the data that belong to the class.

    Raises:
        TypeError: the blob holds something else.
        RuntimeError: see ``_require_aliases``.
    """
    stream = io.BytesIO(blob)
    found = pickle.load(stream)
    cls, *held = found if isinstance(found, tuple) else (found,)
    if not (isinstance(cls, type) and issubclass(cls, Function)):
        raise TypeError(f"shipped code holds {cls!r}, not a Function class")
    settings, aliases = pickle.load(stream) if stream.tell() < len(blob) else ({}, {})
    _require_aliases(cls, aliases)
    return Loaded(cls, settings, tuple(held))


def _require_aliases(cls: type[Function], aliases: dict[tuple[str, str], str]) -> None:
    """Check that installed modules hold the same functions here as in the calling process.

    Raises:
        RuntimeError: user code in the calling process has replaced one of them.
    """
    for (name, attribute), expected in aliases.items():
        module = sys.modules.get(name) or importlib.import_module(name)
        own = getattr(vars(module).get(attribute), "__name__", attribute)
        if own != expected:
            raise RuntimeError(
                f"{cls.__qualname__} reads {name}.{attribute}, which has been replaced by "
                f"{expected} in the calling process, but not in its workers; set "
                f'run_on = "client" on {cls.__qualname__}'
            )


def load_attributes(data: bytes, buffers: Sequence[Any], held: tuple[type, ...]) -> dict[str, Any]:
    """The attributes that ``pack_attributes`` has packed."""
    if not data:
        return {}
    unpickler = _Unpickler(io.BytesIO(data), buffers=buffers)
    unpickler.held = held
    attributes: dict[str, Any] = unpickler.load()
    return attributes


def thaw(data: bytes) -> Any:
    """An object whose arrays were packed with it, and belong to it."""
    return pickle.loads(data)


def tensor_over(array: Any, attributes: dict[str, Any]) -> Tensor:
    """A tensor of a ctx: what cannot be written in a worker, as arrays cannot."""
    tensor = Tensor(array)
    vars(tensor).update(attributes)
    return tensor


class _Unpickler(pickle.Unpickler):
    held: tuple[type, ...]

    def persistent_load(self, number: int) -> type:
        return self.held[number]


def establish(settings: Settings) -> None:
    """Give globals of installed modules the values of the sending process."""
    for (name, attribute), value in settings.items():
        module = sys.modules.get(name) or importlib.import_module(name)
        if not same(vars(module).get(attribute, MISSING), value):
            setattr(module, attribute, value)
