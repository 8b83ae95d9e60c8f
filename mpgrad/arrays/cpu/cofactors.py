"""Cofactors of matrices, the derivative of their determinants, and the derivative of these.

Both are polynomials, so they exist for singular matrices, too: there they come from the singular
values, because those of ``U S V^H`` are the product of those of the three factors.
"""

from __future__ import annotations

from typing import Any

from numpy import finfo


def cofactors(np: Any, x: Any) -> Any:
    """The cofactor of each element of square matrices.

    Args:
        np: NumPy, or CuPy.
        x: (..., n, n).
    """
    if x.shape[-1] == 1:
        return np.ones_like(x)
    inverse = _inverse(np, x)
    if inverse is not None:
        return np.linalg.det(x)[..., None, None] * np.swapaxes(inverse, -1, -2)
    left, values, right = _factors(np, x)
    return left @ (_products_without_one(np, values)[..., None] * right)


def cofactors_slope(np: Any, x: Any, grad: Any) -> Any:
    """The transposed derivative of :func:`cofactors` at ``x``, applied to ``grad``."""
    if x.shape[-1] == 1:
        return np.zeros_like(x)
    inverse = _inverse(np, x)
    if inverse is not None:
        turned = np.swapaxes(inverse, -1, -2)
        det = np.linalg.det(x)[..., None, None]
        trace = (grad * turned).sum((-1, -2), keepdims=True)
        return det * (trace * turned - turned @ np.swapaxes(grad, -1, -2) @ turned)
    left, values, right = _factors(np, x)
    inner = np.swapaxes(left, -1, -2) @ grad @ np.swapaxes(right, -1, -2)
    pairs = _products_without_two(np, values)
    diagonal = np.einsum("...ii->...i", inner)
    found = -pairs * np.swapaxes(inner, -1, -2)
    place = np.arange(x.shape[-1])
    found[..., place, place] = (pairs @ diagonal[..., None])[..., 0]
    u, _, vh = np.linalg.svd(x)
    return u.conj() @ found @ vh.conj()


def _inverse(np: Any, x: Any) -> Any:
    """None if some matrix cannot be inverted, or not to half of the digits."""
    if not bool(np.isfinite(x).all()):
        return np.full_like(x, np.nan)
    try:
        inverse = np.linalg.inv(x)
    except np.linalg.LinAlgError:
        return None
    condition = abs(x).max(initial=0.0) * abs(inverse).max(initial=0.0)
    return inverse if condition < finfo(x.dtype).eps ** -0.5 else None


def _factors(np: Any, x: Any) -> tuple[Any, Any, Any]:
    """The cofactors of the outer factors, and the singular values between them."""
    u, values, vh = np.linalg.svd(x)
    left, right = (f.conj() * np.linalg.det(f)[..., None, None] for f in (u, vh))
    return left, values, right


def _products_without_one(np: Any, values: Any) -> Any:
    """For each of the last dimension the product of the others."""
    count = values.shape[-1]
    others = np.where(np.eye(count, dtype=bool), 1.0, values[..., None, :])
    return others.prod(-1)


def _products_without_two(np: Any, values: Any) -> Any:
    """For each pair the product of the others; 0 on the diagonal."""
    count = values.shape[-1]
    one = np.eye(count, dtype=bool)
    others = np.where(one[:, None] | one[None, :], 1.0, values[..., None, None, :])
    return np.where(one, 0.0, others.prod(-1))
