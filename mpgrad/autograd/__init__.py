"""Automatic differentiation: the recorded graph and what users do with it (lazy, like mpgrad).

Not here: processes, and where a graph runs (see ``engine``). Begin with ``backward``.
"""

from __future__ import annotations

from mpgrad.base.lazy import attach as _attach

_HOME = {
    "Function": "mpgrad.autograd.function",
    "SavedTensor": "mpgrad.recording.dispatch.saved_attributes",
    "Variable": "mpgrad.autograd.variable",
    "backward": "mpgrad.autograd.backward",
    "detect_anomaly": "mpgrad.recording.graph.anomaly",
    "set_detect_anomaly": "mpgrad.recording.graph.anomaly",
    "grad": "mpgrad.autograd.backward",
    "gradcheck": "mpgrad.autograd.gradcheck",
    "gradgradcheck": "mpgrad.autograd.gradcheck",
    "no_grad": "mpgrad.recording.graph.grad_modes",
    "enable_grad": "mpgrad.recording.graph.grad_modes",
    "set_grad_enabled": "mpgrad.recording.graph.grad_modes",
    "inference_mode": "mpgrad.recording.graph.grad_modes",
    "set_multithreading_enabled": "mpgrad.recording.graph.grad_modes",
    "is_multithreading_enabled": "mpgrad.recording.graph.grad_modes",
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
    not_for=("mpgrad.recording.graph.grad_modes",),
)
