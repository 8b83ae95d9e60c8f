"""Transforms of vectors and matrices, and of parts of Tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from mpgrad.base.size import Size
from mpgrad.distributions import constraints
from mpgrad.distributions.parameters import (
    least,
    resolution,
    tril_matrix_to_vec,
    vec_to_tril_matrix,
)
from mpgrad.distributions.transform import Transform, sum_last
from mpgrad.ops.by_index.selection import pad, tril
from mpgrad.ops.elementwise.minimum_maximum import clamp
from mpgrad.ops.elementwise.transcendental import atanh, exp, log, sigmoid, tanh
from mpgrad.ops.linear_algebra.matrices import cholesky
from mpgrad.ops.neural.activation import logsigmoid, softmax, softplus
from mpgrad.ops.new_tensors.creation import arange, eye, zeros
from mpgrad.ops.reductions.products import cumprod
from mpgrad.ops.reductions.reduction import cumsum
from mpgrad.ops.shapes.joining import cat
from mpgrad.ops.shapes.shape import reshape, stack
from mpgrad.ops.shapes.tiles_and_pairs import diag_embed
from mpgrad.recording.tensors.tensor import Tensor


class _OfVectors(Transform):
    """Without parameters: all objects of a class are equal."""

    domain: Any = constraints.real_vector

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    __hash__ = Transform.__hash__


class SoftmaxTransform(_OfVectors):
    """The softmax of vectors; as inverse serves the logarithm. It is not bijective."""

    codomain = constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        return softmax(x, -1)  # type: ignore[no-any-return]

    def _inverse(self, y: Tensor) -> Tensor:
        return log(y)

    def forward_shape(self, shape: Sequence[int]) -> Any:
        return _at_least(1, shape)

    inverse_shape = forward_shape


class StickBreakingTransform(_OfVectors):
    """Breaks a stick of length 1 into pieces, one more than numbers.

    A sigmoid of each number, shifted so that zeros give equal pieces, is the share of what is left.
    """

    codomain = constraints.simplex
    bijective = True

    def _shift(self, x: Tensor) -> Tensor:
        """The logarithm of the number of pieces that are left but for one."""
        count = x.shape[-1]
        return log(count - arange(count, dtype=x.dtype, device=x.device))

    def _call(self, x: Tensor) -> Tensor:
        shares = sigmoid(x - self._shift(x))
        return pad(shares, (0, 1), value=1) * pad(cumprod(1 - shares, -1), (1, 0), value=1)

    def _inverse(self, y: Tensor) -> Tensor:
        pieces = y[..., :-1]
        rest = clamp(1 - cumsum(pieces, -1), min=least(y))
        return log(pieces) - log(rest) + self._shift(pieces)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        shifted = x - self._shift(x)
        return (-shifted + logsigmoid(shifted) + log(y[..., :-1])).sum(-1)

    def forward_shape(self, shape: Sequence[int]) -> Any:
        shape = _at_least(1, shape)
        return Size((*shape[:-1], shape[-1] + 1))

    def inverse_shape(self, shape: Sequence[int]) -> Any:
        shape = _at_least(1, shape)
        return Size((*shape[:-1], shape[-1] - 1))


class LowerCholeskyTransform(_OfVectors):
    """The lower triangle of a matrix, with the exponential of its diagonal."""

    domain = constraints.independent(constraints.real, 2)
    codomain: Any = constraints.lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        return tril(x, -1) + diag_embed(exp(x.diagonal(dim1=-2, dim2=-1)))

    def _inverse(self, y: Tensor) -> Tensor:
        return tril(y, -1) + diag_embed(log(y.diagonal(dim1=-2, dim2=-1)))


class PositiveDefiniteTransform(LowerCholeskyTransform):
    """``L @ L.mT`` of the matrix that :class:`LowerCholeskyTransform` gives."""

    codomain = constraints.positive_definite

    def _call(self, x: Tensor) -> Tensor:
        factor = super()._call(x)
        return factor @ factor.mT

    def _inverse(self, y: Tensor) -> Tensor:
        return super()._inverse(cholesky(y))


class CorrCholeskyTransform(_OfVectors):
    """A vector of n (n - 1) / 2 numbers as the Cholesky factor of a correlation matrix of n rows.

    The numbers, row by row, become partial correlations ``tanh(x)``: each is the share of what the
    numbers before it leave of a row of length 1 (Stan's "Cholesky factors of correlation
    matrices").
    """

    codomain = constraints.corr_cholesky
    bijective = True

    def _call(self, x: Tensor) -> Tensor:
        eps = resolution(x)
        z = vec_to_tril_matrix(clamp(tanh(x), -1 + eps, 1 - eps), -1)
        left = cumprod((1 - z**2).sqrt(), -1)
        size = z.shape[-1]
        factor = z + eye(size, dtype=z.dtype, device=z.device)
        return factor * pad(left[..., :-1], (1, 0), value=1)

    def _inverse(self, y: Tensor) -> Tensor:
        # What is left of a row before each number; the diagonal is what is left at its end.
        left = clamp(1 - cumsum(y**2, -1), min=resolution(y))
        before = pad(left[..., :-1], (1, 0), value=1).sqrt()
        return atanh(tril_matrix_to_vec(y, -1) / tril_matrix_to_vec(before, -1))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        left = clamp(1 - cumsum(y**2, -1), min=resolution(y))
        # Each number y = tanh(x) * sqrt(left before): the slope is sech(x)^2 * sqrt(left before).
        before = tril_matrix_to_vec(pad(left[..., :-1], (1, 0), value=1), -1)
        stretch = 0.5 * log(before).sum(-1)
        return stretch - 2 * (x + softplus(-2 * x) - math.log(2)).sum(-1)

    def forward_shape(self, shape: Sequence[int]) -> Any:
        shape = _at_least(1, shape)
        count = shape[-1]
        size = round((0.25 + 2 * count) ** 0.5 + 0.5)
        if size * (size - 1) // 2 != count:
            raise ValueError("Input is not a flattened lower-diagonal number")
        return Size((*shape[:-1], size, size))

    def inverse_shape(self, shape: Sequence[int]) -> Any:
        shape = _at_least(2, shape)
        size = shape[-1]
        if shape[-2] != size:
            raise ValueError("Input is not square")
        return Size((*shape[:-2], size * (size - 1) // 2))


class ReshapeTransform(Transform):
    """Another shape for each value.

    Args:
        in_shape, out_shape: of one value, with equally many elements.
        cache_size: as in :class:`Transform`.

    Raises:
        ValueError: they have different numbers of elements.
    """

    bijective = True

    def __init__(
        self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.in_shape, self.out_shape = Size(in_shape), Size(out_shape)
        if math.prod(self.in_shape) != math.prod(self.out_shape):
            raise ValueError("in_shape, out_shape have different numbers of elements")

    @property
    def domain(self) -> Any:  # type: ignore[override]
        return constraints.independent(constraints.real, len(self.in_shape))

    @property
    def codomain(self) -> Any:  # type: ignore[override]
        return constraints.independent(constraints.real, len(self.out_shape))

    def with_cache(self, cache_size: int = 1) -> Any:
        return self._again(cache_size, self.in_shape, self.out_shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReshapeTransform) and (self.in_shape, self.out_shape) == (
            other.in_shape,
            other.out_shape,
        )

    __hash__ = Transform.__hash__

    def _batch(self, shape: Sequence[int], inner: Sequence[int]) -> tuple[int, ...]:
        return tuple(shape)[: len(shape) - len(inner)]

    def _call(self, x: Tensor) -> Tensor:
        return reshape(x, (*self._batch(x.shape, self.in_shape), *self.out_shape))

    def _inverse(self, y: Tensor) -> Tensor:
        return reshape(y, (*self._batch(y.shape, self.out_shape), *self.in_shape))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return zeros(self._batch(x.shape, self.in_shape), dtype=x.dtype, device=x.device)

    def forward_shape(self, shape: Sequence[int]) -> Any:
        return self._changed(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Sequence[int]) -> Any:
        return self._changed(shape, self.out_shape, self.in_shape)

    def _changed(self, shape: Sequence[int], old: Any, new: Any) -> Any:
        shape = _at_least(len(old), shape)
        if tuple(shape[len(shape) - len(old) :]) != tuple(old):
            raise ValueError(
                f"Shape mismatch: expected {shape[len(shape) - len(old) :]} but got {old}"
            )
        return Size((*self._batch(shape, old), *new))


class IndependentTransform(Transform):
    """A transform whose last ``reinterpreted_batch_ndims`` dimensions belong to one value."""

    def __init__(
        self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.base_transform = base_transform.with_cache(cache_size)
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    @property
    def domain(self) -> Any:  # type: ignore[override]
        return constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims)

    @property
    def codomain(self) -> Any:  # type: ignore[override]
        return constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return self.base_transform.bijective

    @property
    def sign(self) -> Any:
        return self.base_transform.sign

    def with_cache(self, cache_size: int = 1) -> Any:
        return self._again(cache_size, self.base_transform, self.reinterpreted_batch_ndims)

    def _checked(self, value: Tensor, constraint: Any) -> Tensor:
        if value.ndim < constraint.event_dim:
            raise ValueError("Too few dimensions on input")
        return value

    def _call(self, x: Tensor) -> Tensor:
        return self.base_transform(self._checked(x, self.domain))

    def _inverse(self, y: Tensor) -> Tensor:
        return self.base_transform._inverse_call(self._checked(y, self.codomain))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        slope = self.base_transform.log_abs_det_jacobian(x, y)
        return sum_last(slope, self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: Sequence[int]) -> Any:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Any:
        return self.base_transform.inverse_shape(shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_transform!r}, {self.reinterpreted_batch_ndims})"


class _OfParts(Transform):
    """Transforms of parts of a Tensor."""

    def __init__(self, tseq: Sequence[Transform], dim: int, cache_size: int) -> None:
        for each in tseq:
            if not isinstance(each, Transform):
                raise TypeError(f"All elements of tseq must be Transforms, not {each!r}")
        super().__init__(cache_size)
        self.transforms = [each.with_cache(cache_size) for each in tseq]
        self.dim = dim

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return all(each.bijective for each in self.transforms)


class CatTransform(_OfParts):
    """Transforms of parts along ``dim``, of ``lengths``."""

    def __init__(
        self,
        tseq: Sequence[Transform],
        dim: int = 0,
        lengths: Sequence[int] | None = None,
        cache_size: int = 0,
    ) -> None:
        super().__init__(tseq, dim, cache_size)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.transforms):
            raise ValueError(f"{len(self.transforms)} transforms need as many lengths: {lengths}")

    @property
    def event_dim(self) -> int:
        return max(each.event_dim for each in self.transforms)

    @property
    def length(self) -> int:
        """Of all parts."""
        return sum(self.lengths)

    @property
    def domain(self) -> Any:  # type: ignore[override]
        return constraints.cat([each.domain for each in self.transforms], self.dim, self.lengths)

    @property
    def codomain(self) -> Any:  # type: ignore[override]
        return constraints.cat([each.codomain for each in self.transforms], self.dim, self.lengths)

    def with_cache(self, cache_size: int = 1) -> Any:
        return self._again(cache_size, self.transforms, self.dim, self.lengths)

    def _parts(self, value: Tensor) -> list[Tensor]:
        starts = accumulate(self.lengths[:-1], initial=0)
        return [
            value.narrow(self.dim, start, length)
            for start, length in zip(starts, self.lengths, strict=True)
        ]

    def _call(self, x: Tensor) -> Tensor:
        pairs = zip(self.transforms, self._parts(x), strict=True)
        return cat([each(part) for each, part in pairs], self.dim)

    def _inverse(self, y: Tensor) -> Tensor:
        pairs = zip(self.transforms, self._parts(y), strict=True)
        return cat([each._inverse_call(part) for each, part in pairs], self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        most = self.event_dim
        slopes = [
            sum_last(each.log_abs_det_jacobian(before, after), most - each.event_dim)
            for each, before, after in zip(
                self.transforms, self._parts(x), self._parts(y), strict=True
            )
        ]
        dim = self.dim - x.ndim if self.dim >= 0 else self.dim
        if dim + most < 0:
            return cat(slopes, dim + most)
        total = slopes[0]
        for slope in slopes[1:]:
            total = total + slope
        return total


class StackTransform(_OfParts):
    """Transforms of slices along ``dim``."""

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(tseq, dim, cache_size)

    @property
    def domain(self) -> Any:  # type: ignore[override]
        return constraints.stack([each.domain for each in self.transforms], self.dim)

    @property
    def codomain(self) -> Any:  # type: ignore[override]
        return constraints.stack([each.codomain for each in self.transforms], self.dim)

    def with_cache(self, cache_size: int = 1) -> Any:
        return self._again(cache_size, self.transforms, self.dim)

    def _call(self, x: Tensor) -> Tensor:
        pairs = zip(self.transforms, x.unbind(self.dim), strict=True)
        return stack([each(part) for each, part in pairs], self.dim)

    def _inverse(self, y: Tensor) -> Tensor:
        pairs = zip(self.transforms, y.unbind(self.dim), strict=True)
        return stack([each._inverse_call(part) for each, part in pairs], self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        triples = zip(self.transforms, x.unbind(self.dim), y.unbind(self.dim), strict=True)
        return stack([each.log_abs_det_jacobian(a, b) for each, a, b in triples], self.dim)


def _at_least(count: int, shape: Sequence[int]) -> tuple[int, ...]:
    """``shape``.

    Raises:
        ValueError: it has fewer dimensions.
    """
    if len(shape) < count:
        raise ValueError("Too few dimensions on input")
    return tuple(shape)
