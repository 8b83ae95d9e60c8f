"""How Tensors are copied and pickled, in this process and for others."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import moved, on_host, usable
from mpgrad.base.context_manager import contextmanager
from mpgrad.base.thread_state import PerThread
from mpgrad.recording.tensors import storage
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.tensor_methods.storages import UntypedStorage

Array = np.ndarray[Any, Any]


def _made(kind: type[Tensor], array: Array, requires_grad: bool) -> Tensor:
    """A leaf of class ``kind`` over ``array``, without a call of the class's constructor."""
    made = kind.__new__(kind)
    Tensor.__init__(made, array, requires_grad=requires_grad)
    return made


def _copy(self: Tensor) -> Tensor:
    """``copy.copy``: a leaf over the same memory, without history, hooks and ``.grad``."""
    copied = _made(type(self), self._array, self.requires_grad)
    copied._version_counter = self._version_counter
    copied.__dict__.update(self.__dict__)
    return copied


def _deepcopy(self: Tensor, memo: dict[int, Any]) -> Tensor:
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment. Use detach() first."
        )
    if id(self) in memo:
        return memo[id(self)]  # type: ignore[no-any-return]
    copied = _made(type(self), _copied(self._array), self.requires_grad)
    memo[id(self)] = copied
    copied._grad = copy.deepcopy(self._grad, memo)
    copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
    return copied


def _copied(array: Array) -> Array:
    """A copy in mpgrad's memory, in the same layout if that is dense."""
    if not array.flags.c_contiguous and storage.is_dense(array):
        return storage.adopt_in_layout(array, array)
    return storage.adopt(array)


# ------------------------------------------------------------------------ pickles


def _reduce(self: Tensor, protocol: int) -> tuple[Any, ...]:
    """Values, ``requires_grad`` and the user's attributes; a computed tensor becomes a leaf."""
    _check_may_travel(self)
    for hook in _hooks_on(self):
        warnings.warn(
            f"backward hook {hook!r} on tensor will not be serialized.", UserWarning, stacklevel=2
        )
    arguments = (type(self), np.asarray(on_host(self._array)), self.requires_grad, str(self.device))
    return (_rebuild, arguments, (self.__dict__ or None, None))


def _hooks_on(tensor: Tensor) -> Iterable[Any]:
    """Hooks on the gradient of a leaf, or of a computed tensor."""
    if tensor.grad_fn is None:
        return tensor._leaf_hooks or ()
    hooks = tensor.grad_fn.hooks
    return hooks.tensor.get(tensor.output_nr, ()) if hooks is not None else ()


def _rebuild(kind: type[Tensor], array: Array, requires_grad: bool, device: str = "cpu") -> Tensor:
    """Put a GPU's tensor on its device, or on the one that ``map_location`` of ``mg.load`` names.

    Raises:
        RuntimeError: there is no such device here.
    """
    place = _locations.mapped(device, array)
    usual = np.dtype(array.dtype.type)
    if usual == array.dtype:
        # A pickle gives a dtype of its own, and the next pickle would write it once more.
        array = array.view(usual)
    try:
        made = _copied(array) if place == "cpu" else moved(array, usable(place))
    except RuntimeError as error:
        asked = f"a tensor was saved from {device!r}"
        if place != device:
            asked = f"map_location asks for {place!r}"
        raise RuntimeError(
            f"{asked}, which is not here: load the file with "
            f"mg.load(..., map_location='cpu') or another device ({error})"
        ) from error
    return _made(kind, made, requires_grad)


class _Locations(PerThread):
    """The ``map_location`` while this thread loads a file."""

    chosen: Any = None

    def mapped(self, device: str, array: Array) -> str:
        if self.chosen is None:
            return device
        if callable(self.chosen):
            found = self.chosen(UntypedStorage(Tensor(array)), device)
            return device if found is None else str(found.device)
        if isinstance(self.chosen, Mapping):
            return str(self.chosen.get(device, device))
        return str(self.chosen)


_locations = _Locations()


@contextmanager
def mapped_locations(chosen: Any) -> Iterator[None]:
    """Put tensors unpickled inside on ``chosen``, which is as in ``mg.load``."""
    before, _locations.chosen = _locations.chosen, chosen
    try:
        yield
    finally:
        _locations.chosen = before


def _setstate(self: Tensor, state: tuple[dict[str, Any] | None, None]) -> None:
    self.__dict__.update(state[0] or {})


def _check_may_travel(tensor: Tensor) -> None:
    if tensor.requires_grad and not tensor.is_leaf and _is_for_another_process():
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd "
            "does not support crossing process boundaries. If you just want to transfer the data, "
            "call detach() on the tensor before serializing (e.g., putting it on the queue)."
        )


#: Modules that pickle for other processes (joblib has a loky of its own).
_SENDERS = (
    "multiprocessing.reduction",
    "multiprocess.reduction",
    "loky.backend.reduction",
    "ray._private.serialization",
    "distributed.protocol.pickle",
)


def _is_for_another_process() -> bool:
    """Whether one of ``_SENDERS`` pickles it for a queue or a pipe.

    Registering with its pickler would load it, which takes as long as all operators.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if isinstance(name, str) and name.endswith(_SENDERS):
            return True
        frame = frame.f_back
    return False


METHODS: dict[str, Callable[..., Any]] = {
    "__copy__": _copy,
    "__deepcopy__": _deepcopy,
    "__reduce_ex__": _reduce,
    "__setstate__": _setstate,
}
