"""Tensors and Modules of PyTorch where those of mpgrad are wanted: what errors say about them.

PyTorch need not be installed: its classes are known by their names.
"""

from __future__ import annotations

from typing import Any

#: How a tensor comes from one library to the other.
MEND = (
    "mg.from_dlpack(x.detach()) makes a tensor of mpgrad in the memory of x, "
    "torch.from_dlpack(x.detach()) one of PyTorch; gradients do not pass"
)


def is_tensor_of_pytorch(value: Any) -> bool:
    """Whether it is a tensor of PyTorch."""
    return _has_base(value, "torch", "Tensor")


def is_of_pytorch(value: Any) -> bool:
    """Whether it is a tensor of PyTorch, or a list or tuple with one."""
    if isinstance(value, list | tuple):
        return any(is_of_pytorch(item) for item in value)
    return is_tensor_of_pytorch(value)


def kind_of(value: Any) -> str:
    """The name of its type for an error: ``torch.Tensor``, not ``Tensor``, which ours have, too."""
    if is_tensor_of_pytorch(value):
        return "torch.Tensor"
    kind = type(value)
    if is_of_pytorch(value):
        return f"{kind.__name__} with a torch.Tensor"
    if _has_base(value, "torch.nn.modules.module", "Module"):
        return f"{kind.__module__}.{kind.__qualname__}"
    return kind.__name__


def mend(value: Any) -> str:
    """The end of an error about ``value``: empty, or what helps with a tensor of PyTorch."""
    return f": {MEND}" if is_of_pytorch(value) else ""


def mixed(name: str) -> TypeError:
    """The error of an operation that was given tensors of both libraries."""
    return TypeError(f"{name}: a tensor of mpgrad meets one of PyTorch: {MEND}")


def _has_base(value: Any, module: str, name: str) -> bool:
    return any(base.__name__ == name and base.__module__ == module for base in type(value).__mro__)
