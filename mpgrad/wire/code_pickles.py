"""Pickles of functions and classes by value, which keep the names of their files.

From version 3.1.3 on, cloudpickle calls every file ``<dynamic-code>``. Tracebacks and warnings of
another process need the true name.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, ModuleType
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


#: cloudpickle has one list of such modules, so one dump at a time may change it.
_lock = threading.RLock()


@contextmanager
def by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    """Let cloudpickle send what ``modules`` define by value, for one dump of this thread."""
    with _lock:
        already = cloudpickle.list_registry_pickle_by_value()
        added = [module for module in modules if module.__name__ not in already]
        for module in added:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in added:
                cloudpickle.unregister_pickle_by_value(module)


def _forget_lock_in_child() -> None:
    # A thread that does not exist in the child may hold it.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_lock_in_child)
