"""Imports every operator family, so that ``registry.OPERATORS`` is complete: for workers, too."""

from __future__ import annotations

from mpgrad.ops import (
    activation,
    arithmetic,
    choices,
    complex_numbers,
    convolution,
    dropout,
    extrema,
    indexing,
    linalg,
    loss,
    matrices,
    normalization,
    norms,
    overwriting,
    pooling,
    products,
    promotion,
    reduction,
    rounding,
    shape,
    transcendental,
)

#: The modules that register operators.
FAMILIES = (
    activation,
    arithmetic,
    choices,
    complex_numbers,
    convolution,
    dropout,
    extrema,
    indexing,
    linalg,
    loss,
    matrices,
    normalization,
    norms,
    overwriting,
    pooling,
    products,
    promotion,
    reduction,
    rounding,
    shape,
    transcendental,
)
