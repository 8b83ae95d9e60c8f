"""Gradients between the engine and user code: neither of them writes memory that the other keeps.

``lend`` makes the arguments of a Function's backward, ``own`` the arrays that the engine takes from
user code. Both copy only memory that somebody else holds, ``lend`` only when user code changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import Any, TypeAlias

import numpy as np

from mpgrad.arrays.cpu.array_proxies import ArrayProxy
from mpgrad.arrays.cuda.device_arrays import copied, is_array, is_on_gpu
from mpgrad.base.handles import INLINE_LIMIT_BYTES
from mpgrad.recording.tensors.copy_on_write_versions import CopyOnWriteVersions
from mpgrad.recording.tensors.storage import is_exclusive
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.shm.mapped_arena import Lease

Array: TypeAlias = np.ndarray[Any, Any]


def _counted() -> int:
    arrays = [np.empty(0)]
    return getrefcount(arrays[0]) - 1


#: The references of ``sys.getrefcount(holder.array)`` itself (they differ between interpreters).
_COUNTED = _counted()


class _Loan:
    """The owner of a lent array for NumPy: every view refers to it, and not to an array behind
    it."""

    __slots__ = ("__array_interface__", "array")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__
        self.__array_interface__["data"] = (self.__array_interface__["data"][0], True)


def lend(grads: list[Any]) -> tuple[list[Tensor | None], list[CopyOnWriteVersions]]:
    """The gradients (arrays or None) as tensors for a user's rule, and the loans among them;
    ``grads`` is emptied.

    A small gradient is copied. The rule may change a large one that nobody else holds; any other
    moves to memory of its own before it is changed in place (``CopyOnWriteVersions``), and NumPy
    sees it read-only.
    """
    lent: list[Tensor | None] = []
    loans: list[CopyOnWriteVersions] = []
    for nr in range(len(grads)):
        # Taken out of the list, so that this is the only reference if nobody else has one.
        array, grads[nr] = grads[nr], None
        is_here = type(array) is np.ndarray
        if is_here:
            if array.nbytes <= INLINE_LIMIT_BYTES:  # quicker than to see who holds it
                lent.append(Tensor(array.copy()))
                continue
        elif array is None:
            lent.append(None)
            continue
        elif type(array) is ArrayProxy:  # a copy: in another run something else may hold it
            lent.append(Tensor(array.copy()))
            continue
        else:
            is_here = not is_on_gpu(array)
            array = np.asarray(array) if is_here else array
        if is_exclusive(array):
            lent.append(Tensor(array))
            continue
        counter = CopyOnWriteVersions(np.asarray(_Loan(array)) if is_here else array, array)
        tensor = Tensor(counter.seen, version_counter=counter)
        counter.add(tensor)
        lent.append(tensor)
        loans.append(counter)
    return lent, loans


def take_back(loans: Sequence[CopyOnWriteVersions]) -> list[tuple[Array, Array]]:
    """The lent gradients that user code could not change: the array that it saw, and the original
    array."""
    found = []
    for loan in loans:
        if isinstance(loan.seen, np.ndarray):  # a GPU's array may be written all the same
            found.append((loan.seen, loan.original))
        # User code may keep the tensor, which must not keep the gradient.
        loan.original = None
    return found


def are_fresh(arrays: list[Any]) -> bool:
    """Whether each of ``arrays`` owns its memory and nobody else has it, as is usual."""
    for array in arrays:
        if array is not None and (array.base is not None or getrefcount(array) > _IN_A_LOOP):
            return False
    return True


def _in_a_loop() -> int:
    arrays = [np.empty(0)]
    for array in arrays:
        count = getrefcount(array)
    return count


#: The count in ``are_fresh`` of an array that only the list has (it differs by interpreter).
_IN_A_LOOP = _in_a_loop()


def own(arrays: list[Any], count: int, untouched: Sequence[tuple[Any, Any]]) -> None:
    """Copy those of the first ``count`` of ``arrays`` that user code could still write to.

    Args:
        arrays: the results of user code (arrays or None), followed by its arguments, to which
            nothing else in the engine refers.
        count: the number of results.
        untouched: arguments that user code could not write: (that array, its replacement).
    """
    for at in range(count):
        # No variable refers to the array, because its references are counted.
        if arrays[at] is None or _is_fresh(arrays, at):
            continue
        for seen, original in untouched:
            if arrays[at] is seen:
                arrays[at] = original
                break
            if _is_view_for_reading(arrays[at], seen):
                break
        else:
            if not _is_only_in(arrays, at):
                arrays[at] = copied(arrays[at])


def _is_fresh(arrays: list[Any], at: int) -> bool:
    """Whether it owns its memory and nobody else has it, which is the usual case."""
    return arrays[at].base is None and getrefcount(arrays[at]) - _COUNTED == 1


def _is_view_for_reading(array: Any, of: Any) -> bool:
    """Whether ``array`` is a read-only view of a lent array."""
    if type(array) is not np.ndarray or array.flags.writeable:
        return False
    memory = of.base if type(of.base) is np.ndarray else of
    return array.base is memory


def _is_only_in(arrays: list[Any], at: int) -> bool:
    """Whether ``arrays`` has the only reference to ``arrays[at]`` and to its memory."""
    if getrefcount(arrays[at]) - _COUNTED > sum([other is arrays[at] for other in arrays]):
        return False
    if not is_array(arrays[at]) or arrays[at].base is None:
        return True
    if type(arrays[at].base) is not type(arrays[at]):
        return type(arrays[at].base) is bytes
    if not (arrays[at].base.base is None or isinstance(arrays[at].base.base, Lease)):
        return False
    views = {id(other): other for other in arrays if other is not None}
    known = sum([other.base is arrays[at].base for other in views.values()])
    known += sum([other is arrays[at].base for other in arrays])
    return getrefcount(arrays[at].base) - _COUNTED <= known + (id(arrays[at].base) in views)
