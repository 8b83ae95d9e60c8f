"""Modules side by side, batches in parts: ``Parallel``, ``DataParallel``, ``scatter``, ``gather``.

``DistributedDataParallel``, one model on several hosts, has its name here, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from mpgrad.arrays.cuda.device_arrays import usable
from mpgrad.base.device import CPU, Device
from mpgrad.base.lazy import attach
from mpgrad.calls.own_tensors import LIBRARY
from mpgrad.nn.module import Module
from mpgrad.ops.new_tensors import device_moves
from mpgrad.ops.shapes.shape import unsqueeze
from mpgrad.parallel.maps import map_with_first_buffers, parallel_map, require_equal_parts
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["DataParallel", "DistributedDataParallel", "Parallel", "gather", "scatter"]  # noqa: F822  (loaded on first use)

__getattr__, __dir__ = attach(
    __name__, {"DistributedDataParallel": "mpgrad.distributed.data_parallel"}
)


def scatter(inputs: Any, target_gpus: Sequence[Device | str | int], dim: int = 0) -> Any:
    """Cut every tensor in ``inputs`` into pieces along ``dim``, one for each device.

    Args:
        inputs: a tensor, or tuples, lists and dicts of tensors; anything else goes to every device
            as it is.
        target_gpus: devices, or numbers of GPUs.
        dim: along which the pieces are as long as possible (the last one may be shorter).

    Returns:
        For each device (as many as there are pieces) the structure of ``inputs``.

    Raises:
        RuntimeError: there is no such device.
    """
    devices = [usable(device) for device in target_gpus]

    def cut(value: Any) -> list[Any]:
        if isinstance(value, Tensor):
            return list(device_moves.scatter(value, devices, dim))
        if isinstance(value, tuple | list) and value:
            parts = zip(*map(cut, value), strict=False)
            return [_like(value, part) for part in parts]
        if isinstance(value, dict) and value:
            keys = list(value)
            parts = zip(*map(cut, value.values()), strict=False)
            return [type(value)(zip(keys, part, strict=True)) for part in parts]
        return [value] * len(devices)

    return cut(inputs)


def gather(outputs: Sequence[Any], target_device: Device | str | int, dim: int = 0) -> Any:
    """Join what :func:`scatter` cut, on ``target_device``.

    Args:
        outputs: for each device a tensor, or the same structure of tensors. Tensors without
            dimensions are joined to a vector.
        target_device: a device, or the number of a GPU.
        dim: along which the pieces are joined.

    Raises:
        RuntimeError: there is no such device, or shapes differ in another dimension.
        ValueError: dicts with different keys.
    """
    device = usable(target_device)

    def join(values: Sequence[Any]) -> Any:
        first = values[0]
        if isinstance(first, Tensor):
            return device_moves.gather(_with_dimensions(values), device, dim)
        if first is None:
            return None
        if isinstance(first, dict):
            if any(set(value) != set(first) for value in values):
                raise ValueError("All dicts must have the same number of keys")
            return type(first)((key, join([value[key] for value in values])) for key in first)
        return _like(first, [join(parts) for parts in zip(*values, strict=True)])

    return join(outputs)


def _with_dimensions(tensors: Sequence[Tensor]) -> list[Tensor]:
    if any(tensor.ndim for tensor in tensors):
        return list(tensors)
    warnings.warn(
        "Was asked to gather along dimension 0, but all input tensors were scalars; will instead "
        "unsqueeze and return a vector.",
        UserWarning,
        stacklevel=5,
    )
    return [unsqueeze(tensor, 0) for tensor in tensors]


def _like(value: Any, parts: Sequence[Any]) -> Any:
    """``parts`` as a sequence like ``value``, which may be a named tuple."""
    make: Callable[..., Any] = type(value)
    return make(*parts) if hasattr(value, "_fields") else make(parts)


class Parallel(Module):
    """Modules side by side, forward and backward: the list of their results.

    Args:
        modules: each gets the same arguments.
    """

    def __init__(self, *modules: Module) -> None:
        super().__init__()
        for number, module in enumerate(modules):
            self.add_module(str(number), module)

    def forward(self, *inputs: Any, **kwargs: Any) -> list[Any]:
        """``[module(*inputs, **kwargs) for module in modules]``, see ``mpgrad.parallel_map``."""
        return list(parallel_map(_call_module, list(self.children()), shared=(inputs, kwargs)))


def _call_module(module: Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return module(*inputs, **kwargs)


class DataParallel(Module):
    """A Module, under the name ``module``, that gets each batch in parts, forward and backward in
    workers.

    The number of parts is fixed, so that the bits depend on no number of workers. Statistics over a
    batch (BatchNorm) are those of each part, as they are of each GPU's part in PyTorch, and the
    buffers keep what part 0 has left in them. ``DistributedDataParallel`` uses several processes of
    yours.

    Args:
        module: the Module.
        device_ids: PyTorch's GPUs; without effect, as is ``output_device``.
        dim: the dimension along which batches are cut, and results joined.
        parts: the number of parts; batches with fewer rows have as many.

    Raises:
        ValueError: ``parts`` is not positive.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        *,
        parts: int = 8,
    ) -> None:
        super().__init__()
        if parts < 1:
            raise ValueError(f"parts must be at least 1, not {parts}")
        self.module, self.dim, self.parts = module, dim, parts
        self.device_ids, self.output_device = device_ids, output_device

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """What ``module`` gives for the parts of every tensor, joined (see ``gather``).

        Raises:
            ValueError: tensors have different numbers of rows, and would not give as many parts.
        """
        require_equal_parts((inputs, kwargs), self.parts, self.dim, LIBRARY)
        pieces = scatter((inputs, kwargs), [CPU] * self.parts, self.dim)
        if not any(isinstance(one, Tensor) for one in (*inputs, *kwargs.values())):
            return self.module(*inputs, **kwargs)
        calls = [(self.module, *piece) for piece in pieces]
        return gather(map_with_first_buffers(_call_module, calls), CPU, self.dim)
