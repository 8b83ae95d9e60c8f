"""load(): makes a custom Function's class of the bytes from ``run_on``, in a worker."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from mpgrad.autograd.function import Function
from mpgrad.calls.custom_functions.constants import MISSING, same
from mpgrad.calls.custom_functions.contents import (
    KeptContent,
    described_in,
    fingerprint,
    private_copy,
    what_changed,
)
from mpgrad.recording.tensors.tensor import Tensor

#: Constants of installed modules and their classes in the sending process, by module and name.
Settings = dict[tuple[str, str], Any]


class Loaded(NamedTuple):
    """A Function, the settings for each of its runs, classes of values on its ctx, and what it
    reads besides: arrays, and other values with their fingerprint and readers."""

    function: type[Function]
    settings: Settings
    held: tuple[type, ...]
    contents: list[KeptContent]
    values: list[Any]
    kept: bytes
    readers: str

    def what_changed(self) -> str:
        """One thing that a run has changed, in words; empty if there is none."""
        if changed := what_changed(self.contents):
            return changed
        is_other = self.values and fingerprint(self.values, self.contents) != self.kept
        return f"a value ({self.readers})" if is_other else ""


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
        RuntimeError: see ``_require``.
    """
    stream = io.BytesIO(blob)
    unpickler = _Unpickler(stream)
    contents: list[KeptContent] = []
    unpickler.contents = contents
    found = unpickler.load()
    (cls, *held), values, readers = found if isinstance(found, tuple) else ((found,), [], "")
    if not (isinstance(cls, type) and issubclass(cls, Function)):
        raise TypeError(f"serialized code holds {cls!r}, not a Function class")
    is_more = stream.tell() < len(blob)
    settings, expected = pickle.load(stream) if is_more else ({}, {})
    _require(cls, expected)
    kept = fingerprint(values, contents) if values else b""
    return Loaded(cls, settings, tuple(held), contents, values, kept, readers)


def _require(cls: type[Function], expected: dict[tuple[str, str], str | bytes]) -> None:
    """Check that installed modules hold the same functions and containers as where ``cls`` is from.

    Raises:
        RuntimeError: user code in the calling process has changed or replaced one of them.
    """
    for (module, name), before in expected.items():
        if described_in(module, name) != before:
            how = f"replaced by {before}" if isinstance(before, str) else "changed"
            raise RuntimeError(
                f"{cls.__qualname__} reads {module}.{name}, which has been {how} in the calling "
                f'process, but not in its workers; set run_on = "client" on {cls.__qualname__}'
            )


def load_attributes(
    data: bytes,
    buffers: Sequence[Any],
    held: tuple[type, ...],
    noted: list[KeptContent] | None = None,
    compared: list[str] | None = None,
) -> dict[str, Any]:
    """The attributes that ``pack_attributes`` has packed.

    Args:
        data, buffers, held: what it has made.
        noted: gets the content of each array and sparse matrix that lies in memory of its own.
        compared: gets the names of the attributes that are to be compared.
    """
    if not data:
        return {}
    unpickler = _Unpickler(io.BytesIO(data), buffers=buffers)
    unpickler.held, unpickler.contents = held, noted
    found = unpickler.load()
    attributes, names = found if isinstance(found, tuple) else (found, ())
    if compared is not None:
        compared.extend(names)
    return attributes  # type: ignore[no-any-return]


def thaw(data: bytes, label: str) -> Any:
    """An object whose arrays were packed with it, and belong to it; ``label`` says who reads it."""
    return pickle.loads(data)


def tensor_of_client(kind: type[Tensor], array: Any, requires_grad: bool) -> Tensor:
    """A stand-in for a tensor of the client that code reads by name."""
    made = kind.__new__(kind)
    Tensor.__init__(made, array, requires_grad=requires_grad)
    made._belongs_to_client = True  # type: ignore[attr-defined]
    return made


def tensor_over(array: Any, attributes: dict[str, Any]) -> Tensor:
    """A tensor of a ctx: what cannot be written in a worker, as arrays cannot."""
    tensor = Tensor(array)
    vars(tensor).update(attributes)
    return tensor


class _Unpickler(pickle.Unpickler):
    """It notes what lies in memory of its own, if ``contents`` is a list."""

    held: tuple[type, ...] = ()
    contents: list[KeptContent] | None = None

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        is_noted = self.contents is not None and found in (thaw, private_copy)
        return partial(self._noted, found) if is_noted else found

    def _noted(self, make: Callable[..., Any], *arguments: Any) -> Any:
        made = make(*arguments)
        assert self.contents is not None
        self.contents.append(KeptContent.of(made, arguments[-1] or "on ctx"))
        return made

    def persistent_load(self, number: int) -> type:
        return self.held[number]


def establish(settings: Settings) -> None:
    """Give globals of installed modules the values of the sending process."""
    for (name, attribute), value in settings.items():
        owner: Any = sys.modules.get(name) or importlib.import_module(name)
        *path, last = attribute.split(".")
        for part in path:  # a constant of a class
            owner = getattr(owner, part)
        now = getattr(owner, last, MISSING) if path else vars(owner).get(last, MISSING)
        if not same(now, value):
            setattr(owner, last, value)
