"""load(): a custom Function's class from the bytes that ``decision`` made of it, in a worker."""

from __future__ import annotations

import pickle

from mpgrad.autograd.function import Function


def load(blob: bytes) -> type[Function]:
    """The Function class in ``blob``: a new class at each call, so keep it by its ``code_id``.

    Raises:
        TypeError: the blob holds something else.
    """
    cls = pickle.loads(blob)
    if not (isinstance(cls, type) and issubclass(cls, Function)):
        raise TypeError(f"shipped code holds {cls!r}, not a Function class")
    return cls
