"""Engine(initializer=...): what runs once in each process before user code does.

The globals that it assigns belong to the process: they do not travel with functions of its module,
which find those of the process that they run in.
"""

from __future__ import annotations

import dis
import hashlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from mpgrad.calls.own_tensors import LIBRARY
from mpgrad.calls.travel import OF_PROCESS, Receiver, Sender
from mpgrad.shm.arena import client_arena
from mpgrad.wire.programs import PackedArray

Array: TypeAlias = np.ndarray[Any, Any]


class Initializer:
    """The initializer of an engine.

    Args:
        function, arguments: what is called.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, tuple(arguments)
        self._code: Array | None = None
        self._id = ""
        self._has_run = False
        note_globals(function)

    def run_here(self) -> None:
        """Call it in this process, once."""
        if not self._has_run:
            self._has_run = True
            self._function(*self._arguments)

    def packed(self, pack: Callable[[Array], PackedArray]) -> tuple[str, PackedArray]:
        """It as a part of a program: its number, and its pickle.

        Raises:
            TypeError: it reads a tensor, which would be another one in each process.
        """
        if self._code is None:
            sender = Sender(LIBRARY)
            data, buffers = sender.dump_shared((self._function, self._arguments))
            if sender.tensors or buffers:
                raise TypeError(
                    "Engine(initializer=...): what it reads holds a tensor or an array; let it "
                    "make its own, or load them from a file"
                )
            code = client_arena().empty((len(data),), np.uint8)
            code[:] = np.frombuffer(data, np.uint8)
            self._code, self._id = code, hashlib.blake2b(data, digest_size=16).hexdigest()
        return self._id, pack(self._code)


def run_packed(code: Array) -> None:
    """Call the initializer in ``code``, in a worker."""
    function, arguments = Receiver(()).load_shared(code.data, ())
    names = note_globals(function)
    try:
        function(*arguments)
    except BaseException as error:
        error.add_note("in Engine(initializer=...)")
        raise
    kept = getattr(function, "__globals__", {})
    values = OF_PROCESS.setdefault(kept.get("__name__", ""), {})
    values.update({name: kept[name] for name in names if name in kept})


def note_globals(function: Any) -> set[str]:
    """The global names that ``function`` assigns; they do not travel from now on."""
    code = getattr(function, "__code__", None)
    if code is None:
        return set()
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_GLOBAL"}
    home = function.__globals__.get("__name__", "")
    known = OF_PROCESS.setdefault(home, {})
    for name in names:
        known.setdefault(name, None)
    return names
