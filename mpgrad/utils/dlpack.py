"""``mg.utils.dlpack``: memory that is shared with other libraries."""

from __future__ import annotations

# Functions return Tensors, which must have their methods.
import mpgrad.tensor_methods  # noqa: F401  isort: skip

from mpgrad.ops.new_tensors.interchange import from_dlpack as from_dlpack
from mpgrad.ops.new_tensors.interchange import to_dlpack as to_dlpack

__all__ = ["from_dlpack", "to_dlpack"]
