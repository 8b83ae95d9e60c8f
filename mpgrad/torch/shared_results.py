"""SharedResult: a result whose memory another tensor of its call shares where the call ran.

In a loop a change in place would be seen in both. Here each has memory of its own, and the change
would be seen in one. So it is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

_REFUSED = (
    "{name} would change a result of a call in place that shares its memory with an argument or "
    "with another result: in a loop both would change, here only this one. Work on its .clone()"
)
#: What ends like a change in place, and changes no element.
_HARMLESS = frozenset({"requires_grad_", "detach_", "share_memory_"})
_NOT_IN_PLACE = frozenset({"__index__", "__int__", "__invert__"})


class SharedResult(torch.Tensor):
    """Such a result. What is computed from it is a plain tensor; its views are such results, too.

    Raises:
        RuntimeError: by every operation that would change its elements.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run ``func`` unless it changes one of these tensors."""
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            changed = args[:1] if _is_in_place(name, kwargs) else ()
            if [*_shared_in([changed, kwargs.get("out")])]:
                raise RuntimeError(_REFUSED.format(name=name))
            shared = [*_shared_in([args, [*kwargs.values()]])]
            before = list(map(_version, shared))
            found = func(*args, **kwargs)
            if before != list(map(_version, shared)):
                raise RuntimeError(_REFUSED.format(name=name))
            if isinstance(found, np.ndarray):
                found.flags.writeable = False
            addresses = set(map(_address, shared))
            for one in found if isinstance(found, tuple | list) else (found,):
                if type(one) is torch.Tensor and _address(one) in addresses:
                    one.__class__ = cls  # a view
        return found

    def __deepcopy__(self, memo: Any) -> Any:
        return _plain(self).__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _plain(self).__reduce_ex__(protocol)


def _is_in_place(name: str, kwargs: dict[str, Any]) -> bool:
    """Whether an operation of that name changes its first argument. Those that are missed here are
    found by its version."""
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name not in _NOT_IN_PLACE)
    return bool(kwargs.get("inplace")) or (name.endswith("_") and name not in _HARMLESS)


def _shared_in(values: Sequence[Any]) -> Iterator[SharedResult]:
    for one in values:
        if isinstance(one, SharedResult):
            yield one
        elif isinstance(one, tuple | list):
            yield from _shared_in(one)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _address(tensor: torch.Tensor) -> int:
    """Where the memory of ``tensor`` begins; -1 if it has none."""
    if tensor.layout != torch.strided or not tensor.numel():
        return -1
    return tensor.untyped_storage().data_ptr()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)
