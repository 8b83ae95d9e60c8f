"""``mg.signal``: PyTorch's names for windows, in ``mg.signal.windows``."""

from __future__ import annotations

# Functions return Tensors, which must have their methods.
import mpgrad.tensor_methods  # noqa: F401  isort: skip

from mpgrad.base.missing_names import missing_from as _missing_from
from mpgrad.ops.signals import windows

__all__ = ["windows"]

__getattr__ = _missing_from(__name__)
