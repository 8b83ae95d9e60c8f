"""Optimizers for parameters of several hosts, with the names of ``torch.distributed.optim``.

Not here: the rules of a step, which are those of ``mpgrad.optim``. Begin with
``distributed_optimizer``.
"""

from __future__ import annotations

from mpgrad.base.lazy import attach as _attach

_HOME = {"DistributedOptimizer": "mpgrad.distributed.optim.distributed_optimizer"}

__all__ = [*_HOME]

__getattr__, __dir__ = _attach(__name__, _HOME, first="mpgrad.tensor_methods")
