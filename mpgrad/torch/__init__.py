"""Both passes of branches of a PyTorch program on all cores: ``import mpgrad.torch as mt``.

Tensors, Modules, optimizers and the loop stay PyTorch's, and so does its engine.
"""

from __future__ import annotations

from mpgrad.torch import is_torch  # noqa: F401  (first: it says what is missing)
from mpgrad.torch.cpu_data_parallel import DataParallel
from mpgrad.torch.parallelize import parallelize
from mpgrad.torch.public_functions import doctor, fork, parallel_map, wait

__all__ = ["DataParallel", "doctor", "fork", "parallel_map", "parallelize", "wait"]
