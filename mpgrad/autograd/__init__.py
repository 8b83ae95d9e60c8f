"""Automatic differentiation: the recorded graph and what users do with it (lazy, like mpgrad)."""

from __future__ import annotations

from mpgrad.lazy import attach as _attach

_HOME = {
    "Function": "mpgrad.autograd.function",
    "SavedTensor": "mpgrad.autograd.saved.saved_attributes",
    "Variable": "mpgrad.autograd.variable",
    "backward": "mpgrad.autograd.backward",
    "detect_anomaly": "mpgrad.autograd.anomaly_mode",
    "set_detect_anomaly": "mpgrad.autograd.anomaly_mode",
    "grad": "mpgrad.autograd.backward",
    "gradcheck": "mpgrad.autograd.gradcheck",
    "gradgradcheck": "mpgrad.autograd.gradcheck",
    "no_grad": "mpgrad.autograd.grad_mode",
    "enable_grad": "mpgrad.autograd.grad_mode",
    "set_grad_enabled": "mpgrad.autograd.grad_mode",
    "inference_mode": "mpgrad.autograd.grad_mode",
    "set_multithreading_enabled": "mpgrad.autograd.grad_mode",
    "is_multithreading_enabled": "mpgrad.autograd.grad_mode",
}

#: Public names that are modules.
_SUBMODULES = ("function", "functional", "graph", "profiler")

__all__ = [*_HOME, *_SUBMODULES]

# `autograd.backward` is both a file and a function, as in PyTorch: the function wins.
__getattr__, __dir__ = _attach(
    __name__,
    _HOME,
    submodules=(*_SUBMODULES, "_functions"),
    first="mpgrad.tensor_methods",
    not_for=("mpgrad.autograd.grad_mode",),
)
