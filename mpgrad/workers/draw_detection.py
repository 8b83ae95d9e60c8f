"""RandomDraws: whether a Function has drawn from the random numbers of its process.

The client's are in another state, and no code of an installed package shows that it draws. A
generator that is made and seeded on the spot is none of these.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from mpgrad.ops.generators import uses_of_process_generator

#: Words of the state of a Mersenne Twister. Behind a seed it stands at the end of them, or at the
#: last one.
_WORDS = 624
_Words = ctypes.c_uint32 * (_WORDS + 1)


class RandomDraws:
    """From now on; it costs about two microseconds, where the states themselves cost twenty."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before = _marks()

    def source(self) -> str:
        """The module that was drawn from, or whose generator was seeded; empty if none was."""
        now = _marks()
        if now == self._before:
            return ""
        for name, before, after in zip(_NAMES, self._before, now, strict=True):
            # A module that was imported meanwhile has not drawn yet if it is as it was seeded.
            is_new = before is None and isinstance(after, tuple) and after[0] >= _WORDS - 1
            if after != before and not is_new:
                return name
        return ""


_NAMES = ("random", "numpy.random", "mpgrad")


def _marks() -> tuple[Any, ...]:
    return _of_python(), _of_numpy(), uses_of_process_generator()


class _Known:
    """The generators that were looked at, which do not move, and their words."""

    python: Any = None
    python_words: Any = None
    numpy: Any = None
    numpy_words: Any = None


def _of_python() -> tuple[int, int] | None:
    module = sys.modules.get("random")
    if module is None:
        return None
    if _Known.python is not module._inst:
        # The place comes before the words; both follow the head of the object.
        start = id(module._inst) + object.__basicsize__
        _Known.python, _Known.python_words = module._inst, _Words.from_address(start)
    words = _Known.python_words
    return words[0], words[2]


def _of_numpy() -> Any:
    module = sys.modules.get("numpy.random.mtrand")
    if module is None:
        return None
    bits = module._rand._bit_generator
    if type(bits).__name__ != "MT19937":
        return id(bits)
    if _Known.numpy is not bits:
        address = bits.ctypes.state_address
        _Known.numpy, _Known.numpy_words = bits, _Words.from_address(address)
    words = _Known.numpy_words
    return words[_WORDS], words[1]
