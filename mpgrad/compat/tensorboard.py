"""``torch.utils.tensorboard``: the writer of the package tensorboardX, for mpgrad's tensors.

It is made from the same source as PyTorch's own, which needs the package tensorboard.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mpgrad.recording.tensors.tensor import Tensor

try:
    import tensorboardX
except ImportError as missing:
    raise ImportError(
        "torch.utils.tensorboard needs the package tensorboardX: pip install tensorboardX"
    ) from missing

__all__ = ["SummaryWriter"]


class SummaryWriter(tensorboardX.SummaryWriter):  # type: ignore[misc]
    """Writes files for TensorBoard; tensors are given to tensorboardX as arrays."""


def _as_arrays(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().numpy(force=True)
    if isinstance(value, dict):
        return {key: _as_arrays(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_as_arrays(item) for item in value)
    return value


def _for_tensors(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def add(self: SummaryWriter, *args: Any, **options: Any) -> Any:
        return method(self, *_as_arrays(args), **_as_arrays(options))

    return add


for _name in dir(tensorboardX.SummaryWriter):
    if _name.startswith("add_"):
        setattr(SummaryWriter, _name, _for_tensors(getattr(tensorboardX.SummaryWriter, _name)))
