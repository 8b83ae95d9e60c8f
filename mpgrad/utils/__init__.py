"""``mg.utils``: PyTorch's names of ``mpgrad.autograd.checkpointing`` and ``mpgrad.data``.

No code is in it but names. Begin with ``checkpoint``.
"""

from __future__ import annotations

from mpgrad.base.lazy import attach as _attach

_SUBMODULES = ("checkpoint", "data", "dlpack")

__all__ = list(_SUBMODULES)

__getattr__, __dir__ = _attach(__name__, {}, submodules=_SUBMODULES, first="mpgrad.tensor_methods")
