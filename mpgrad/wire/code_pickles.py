"""Pickles of functions and classes by value, which keep the names of their files.

From version 3.1.3 on, cloudpickle calls every file ``<dynamic-code>``. Tracebacks and warnings of
another process need the true name.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from types import CodeType
from typing import Any

import cloudpickle


class CodePickler(cloudpickle.Pickler):
    """cloudpickle's Pickler, except for the names of files."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            return _in_file, (obj.co_filename, *self.dispatch_table[CodeType](obj))
        return super().reducer_override(obj)


def _in_file(name: str, make: Callable[..., CodeType], args: tuple[Any, ...]) -> CodeType:
    return make(*args).replace(co_filename=name)


def dumps(obj: object) -> bytes:
    """The pickle of ``obj``."""
    buffer = io.BytesIO()
    CodePickler(buffer, protocol=5).dump(obj)
    return buffer.getvalue()
