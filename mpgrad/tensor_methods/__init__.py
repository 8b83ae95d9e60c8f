"""The methods of Tensor that need the operators; importing this attaches them.

Not here: operators and formulas (``ops``). Begin with ``attach``.
"""

from __future__ import annotations

from mpgrad.tensor_methods import attach as _attach  # noqa: F401
