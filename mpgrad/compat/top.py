"""What ``torch`` itself has and ``mpgrad`` has not, or has otherwise."""

from __future__ import annotations

from mpgrad.compat.tensor_type import Tensor as Tensor

#: The PyTorch whose names these are, for programs that look at ``torch.__version__``.
__version__ = "2.13.0+mpgrad"
