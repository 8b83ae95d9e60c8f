"""The names of ``torch._C._functions``: Nodes without an operator."""

from __future__ import annotations

from mpgrad.autograd.function_nodes.stopping import DelayedError as DelayedError
from mpgrad.autograd.function_nodes.stopping import UndefinedGrad as UndefinedGrad
from mpgrad.recording.tensors.accumulate_grad import AccumulateGrad as AccumulateGrad

__all__ = ["AccumulateGrad", "DelayedError", "UndefinedGrad"]
