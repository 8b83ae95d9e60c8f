"""The methods of Tensor that need the operators; importing this attaches them."""

from __future__ import annotations

from mpgrad.tensor_methods import attach as _attach  # noqa: F401
