"""load(): a custom Function's class from the bytes that ``decision`` made of it, in a worker."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from typing import Any

from mpgrad.autograd.function import Function
from mpgrad.autograd.shipping.constants import MISSING, same

#: Constants that installed modules hold where the class comes from, by module and name.
Settings = dict[tuple[str, str], Any]


def load(blob: bytes) -> type[Function]:
    """The Function class in ``blob``: a new class at each call, so keep it by its ``code_id``.

    Raises:
        TypeError: the blob holds something else.
    """
    return load_with_settings(blob)[0]


def load_with_settings(blob: bytes) -> tuple[type[Function], Settings]:
    """As ``load``, with what has to be set before each run of the class.

    Raises:
        TypeError: the blob holds something else.
    """
    stream = io.BytesIO(blob)
    cls = pickle.load(stream)
    if not (isinstance(cls, type) and issubclass(cls, Function)):
        raise TypeError(f"shipped code holds {cls!r}, not a Function class")
    return cls, pickle.load(stream) if stream.tell() < len(blob) else {}


def establish(settings: Settings) -> None:
    """Have installed modules hold what they hold where the class comes from."""
    for (name, attribute), value in settings.items():
        module = sys.modules.get(name) or importlib.import_module(name)
        if not same(vars(module).get(attribute, MISSING), value):
            setattr(module, attribute, value)
