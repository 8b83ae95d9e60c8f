"""HarmlessKeys: bounds the work of hashing and comparing what a file uses as keys.

Python hashes a tuple anew each time and with all that it holds, recurses without a limit, and does
not mix a secret into the hashes of numbers.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mpgrad.base.dtype import DType
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.serialization.byte_source import Budget

#: Tuples that may be inside each other, whether they are keys or not.
DEPTH_MAX = 1000
#: All that a key may hold, counted as often as it is hashed.
ITEMS_MAX = 1000
#: Keys of one container that may have the same hash.
EQUAL_HASHES_MAX = 100
#: The longest integer that is a key, in bits.
INT_BITS_MAX = 1024
#: The longest text that is compared for nothing.
SHORT_TEXT = 256

#: What hashing takes the same short time for, but for long integers.
_PLAIN = (int, float, complex, np.generic, np.dtype, DType, Tensor, type, type(None))


class HarmlessKeys:
    """The keys of the containers of one file.

    Args:
        budget: what the file may ask for.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        #: By id, the depth of a tuple or frozenset that holds others, and the items in all of them,
        #: counted as often as they are hashed.
        self._nested: dict[int, tuple[int, int]] = {}
        #: By id, a container with keys whose hashes a file can choose, and how many have each.
        self._hashes: dict[int, tuple[Any, Counter[int]]] = {}

    def nest(self, made: Any, items: Sequence[Any]) -> Any:
        """``made``, a tuple or frozenset of ``items``; hashing it may come later, in any place.

        Raises:
            pickle.UnpicklingError: it is too deep, or it holds the same things too often.
        """
        inner = [
            self._nested.get(id(item), (1, len(item)))
            for item in items
            if type(item) is tuple or type(item) is frozenset
        ]
        if not inner:
            # A tuple that is gone may have had this id.
            self._nested.pop(id(made), None)
            return made
        depth = 1 + max(depth for depth, _ in inner)
        if depth > DEPTH_MAX:
            raise pickle.UnpicklingError(f"over {DEPTH_MAX} tuples are inside each other")
        size = len(items) + sum(size for _, size in inner)
        self._budget.check(size)
        self._nested[id(made)] = (depth, size)
        return made

    def check(self, container: Any, keys: Iterable[Any]) -> None:
        """See whether ``keys`` may be put into ``container``.

        Raises:
            TypeError: one cannot be hashed.
            pickle.UnpicklingError: one is too large, or too many have the same hash.
        """
        for key in keys:
            kind = type(key)
            if kind is str or kind is bytes:
                if len(key) > SHORT_TEXT:
                    self._budget.spend(len(key))
            elif kind is not bool and (kind is not int or not -(2**63) <= key < 2**63):
                self._check_chosen(container, key)

    def _check_chosen(self, container: Any, key: Any) -> None:
        """The same for a key whose hash a file can choose."""
        self._check_size(key)
        _, hashes = self._hashes.setdefault(id(container), (container, Counter()))
        hashes[hash(key)] += 1
        if hashes[hash(key)] > EQUAL_HASHES_MAX:
            raise pickle.UnpicklingError("too many keys of a container have the same hash")

    def _check_size(self, key: Any) -> None:
        left, items = [key], 0
        while left:
            item = left.pop()
            items += 1
            if isinstance(item, tuple | frozenset):
                left += item
            elif isinstance(item, str | bytes):
                self._budget.spend(len(item))
            elif not isinstance(item, _PLAIN):
                raise TypeError(f"unhashable type: {type(item).__name__}")
            elif isinstance(item, int) and item.bit_length() > INT_BITS_MAX:
                raise pickle.UnpicklingError("an integer is too large to be a key")
            if items + len(left) > ITEMS_MAX:
                raise pickle.UnpicklingError(f"a key holds over {ITEMS_MAX} objects")
