"""The table that drives the operator tests: each operator with sample inputs.

A case is a function of ``m`` (mpgrad's operators, or PyTorch under the same names) and float64
inputs. Inputs are shapes, for which values are drawn, or arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tests.ops import fourier_cases, layer_cases, matrix_cases, rearrangement_cases, special_cases

Shape = tuple[int, ...]


class Case(NamedTuple):
    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    #: Whether PyTorch has the function under this name, with these arguments.
    torch: bool = True

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(sum(map(ord, self.name)))
        return [
            np.asarray(rng.uniform(-2, 2, spec)) if isinstance(spec, tuple) else spec.copy()
            for spec in self.inputs
        ]


def positive(*shape: int) -> np.ndarray:
    return np.asarray(np.random.default_rng(7).uniform(0.3, 2.5, shape))


def inside(*shape: int) -> np.ndarray:
    """Values of the open interval (-1, 1)."""
    return np.asarray(np.random.default_rng(8).uniform(-0.9, 0.9, shape))


def _unary() -> list[Case]:
    anywhere = "exp expm1 sin cos tanh sinh cosh sigmoid erf arctan neg abs square relu sign"
    anywhere += " floor ceil round"
    anywhere += " trunc exp2 asinh atan"
    above_zero = "log sqrt rsqrt reciprocal log1p log2 log10"
    cases = [Case(n, lambda m, x, n=n: getattr(m, n)(x), ((3, 4),)) for n in anywhere.split()]
    cases += [
        Case(n, lambda m, x, n=n: getattr(m, n)(x), (positive(3, 4),)) for n in above_zero.split()
    ]
    cases += [
        Case(n, lambda m, x, n=n: getattr(m, n)(x), (inside(5),))
        for n in ("arcsin", "arccos", "atanh")
    ]
    return [
        *cases,
        Case("acosh", lambda m, x: m.acosh(x + 1), (positive(4),)),
        Case("tan", lambda m, x: m.tan(x), (inside(4),)),
        Case("exp 0-d", lambda m, x: m.exp(x), ((),)),
    ]


_binary = [
    Case("add", lambda m, a, b: m.add(a, b), ((3, 4), (3, 4))),
    Case("add broadcasting", lambda m, a, b: m.add(a, b), ((3, 1), (2, 1, 4))),
    Case("add alpha", lambda m, a, b: m.add(a, b, alpha=0.5), ((3,), (3,))),
    Case("add 0-d", lambda m, a, b: a + b, ((), (2, 3))),
    Case("sub", lambda m, a, b: m.sub(a, b), ((3, 1), (4,))),
    Case("rsub scalar", lambda m, a: 3 - a, ((3,),)),
    Case("mul", lambda m, a, b: m.mul(a, b), ((3, 4), (4,))),
    Case("mul itself", lambda m, a: a * a * a, ((3,),)),
    Case("mul scalar", lambda m, a: 2.5 * a * 3, ((2, 3),)),
    Case("div", lambda m, a, b: m.div(a, b), ((2, 3), positive(3))),
    Case("div scalar", lambda m, a: 1 / a + a / 4, (positive(3),)),
    Case("remainder", lambda m, a, b: m.remainder(a, b), ((2, 3), positive(3))),
    Case(
        "div rounded down",
        lambda m, a, b: m.div(a, b, rounding_mode="floor"),
        ((2, 3), positive(3)),
    ),
    Case(
        "div cut off",
        lambda m, a, b: m.div(a, b, rounding_mode="trunc"),
        ((2, 3), positive(3)),
    ),
    Case("round decimals", lambda m, a: m.round(a, decimals=1) + a, ((2, 3),)),
    Case("lerp far", lambda m, a, b: m.lerp(a, b, 0.75), ((3,), (3, 3))),
    Case("lerp weights", lambda m, a, b, w: m.lerp(a, b, w), ((3,), (3, 3), inside(3))),
    Case("pow", lambda m, a, b: m.pow(a, b), (positive(2, 3), (3,))),
    Case("pow 2", lambda m, a: a**2, ((2, 3),)),
    Case("pow 3", lambda m, a: a**3, ((2, 3),)),
    Case("pow half", lambda m, a: a**0.5, (positive(4),)),
    Case("pow 0", lambda m, a: a**0 + a, ((4,),)),
    Case("pow -1", lambda m, a: a**-1, (positive(4),)),
    Case("rpow", lambda m, a: 2**a, ((4,),)),
    Case("maximum", lambda m, a, b: m.maximum(a, b), ((3, 4), (4,))),
    Case("minimum", lambda m, a, b: m.minimum(a, b), ((3, 4), (3, 1))),
    Case("clamp", lambda m, a: m.clamp(a, -0.5, 0.75), ((4, 5),)),
    Case("clamp between", lambda m, a, lo, hi: m.clamp(a, lo, hi + 1), ((4, 5), (5,), (4, 1))),
    Case("clamp from below", lambda m, a, lo: m.clamp(a, min=lo), ((4, 5), (5,))),
    Case("clamp min", lambda m, a: m.clamp(a, min=0.1), ((4, 5),)),
    Case("atan2", lambda m, a, b: m.atan2(a, b), ((3, 4), (4,))),
    Case("logaddexp", lambda m, a, b: m.logaddexp(a, b), ((3, 4), (4,))),
    Case("addcmul", lambda m, a, b: m.addcmul(a, a, b, value=0.5), ((3,), (3,))),
    Case("addcdiv", lambda m, a, b: m.addcdiv(a, a, b, value=2), ((3,), positive(3))),
    Case("lerp", lambda m, a, b: m.lerp(a, b, 0.3), ((3,), (3,))),
    Case("where", lambda m, a, b: m.where(a > b, a, b * 2), ((3, 4), (4,))),
    Case("where scalar", lambda m, a: m.where(a > 0, a, 0.5), ((3, 4),)),
]

_composed = [
    Case("kron", lambda m, a, b: m.kron(a, b), ((2, 3), (2, 2))),
    Case("cross", lambda m, a, b: m.cross(a, b, dim=1), ((2, 3), (2, 3))),
    Case("diag_embed", lambda m, x: m.diag_embed(x, -1), ((2, 3),)),
    Case("combinations", lambda m, x: m.combinations(x, 2), ((4,),)),
    Case("cartesian_prod", lambda m, a, b: m.cartesian_prod(a, b), ((2,), (3,))),
    Case("tile", lambda m, x: m.tile(x, (2, 2)), ((2, 3),)),
    Case("nan_to_num", lambda m, x: m.nan_to_num(x) * x, ((3,),)),
    Case("xlogy", lambda m, x, y: m.xlogy(x, y), ((3,), positive(2, 3))),
    Case("hypot", lambda m, a, b: m.hypot(a, b), ((3,), (2, 3))),
    Case("logit", lambda m, x: m.logit((x + 1) / 2), (inside(4),)),
    Case("logaddexp2", lambda m, a, b: m.logaddexp2(a, b), ((3,), (2, 3))),
    Case("frac", lambda m, x: m.frac(x), ((4,),)),
    Case("median", lambda m, x: m.median(x, 1).values + m.median(x), ((3, 4),)),
    Case("cummax", lambda m, x: m.cummax(x, 1).values, ((3, 4),)),
    Case("cummin", lambda m, x: m.cummin(x, 0).values, ((3, 4),)),
    Case("aminmax", lambda m, x: sum(m.aminmax(x, dim=1)), ((3, 4),)),
    Case("kthvalue", lambda m, x: m.kthvalue(x, 2, 0).values, ((3, 4),)),
    Case("inv", lambda m, x: m.linalg.inv(x + 4 * x.new_ones(3).diag()), ((2, 3, 3),)),
    Case(
        "solve",
        lambda m, a, b: m.linalg.solve(a + 4 * a.new_ones(3).diag(), b),
        ((3, 3), (2, 3, 2)),
    ),
    Case(
        "solve vector",
        lambda m, a, b: m.linalg.solve(a + 4 * a.new_ones(3).diag(), b),
        ((3, 3), (3,)),
    ),
    Case(
        "solve right",
        lambda m, a, b: m.linalg.solve(a + 4 * a.new_ones(3).diag(), b, left=False),
        ((3, 3), (2, 3)),
    ),
    Case("det", lambda m, x: m.linalg.det(x + 3 * x.new_ones(3).diag()), ((2, 3, 3),)),
    Case(
        "slogdet",
        lambda m, x: m.linalg.slogdet(x - 3 * x.new_ones(3).diag()).logabsdet,
        ((2, 3, 3),),
    ),
    Case("logdet", lambda m, x: m.logdet(x @ x.mT + x.new_ones(3).diag()), ((3, 3),)),
    Case(
        "cholesky",
        lambda m, x: m.linalg.cholesky(x @ x.mT + x.new_ones(3).diag()),
        ((2, 3, 3),),
    ),
    Case("matrix_power", lambda m, x: m.linalg.matrix_power(x, 5), ((3, 3),)),
    Case(
        "matrix_power -2", lambda m, x: m.matrix_power(x + 4 * x.new_ones(3).diag(), -2), ((3, 3),)
    ),
    Case("multi_dot", lambda m, a, b, c: m.linalg.multi_dot([a, b, c]), ((3,), (3, 2), (2, 4))),
    Case("matrix_norm 1", lambda m, x: m.linalg.matrix_norm(x, 1), ((2, 3, 4),)),
    Case("matrix_norm inf", lambda m, x: m.linalg.norm(x, float("inf")), ((3, 4),)),
    Case("vector_norm", lambda m, x: m.linalg.vector_norm(x, 3, 1), ((3, 4),)),
    Case("nanmean", lambda m, x: m.nanmean(x, 1), ((3, 4),)),
]

_reductions = [
    Case("sum", lambda m, x: m.sum(x), ((3, 4),)),
    Case("sum dim", lambda m, x: m.sum(x, 1), ((3, 4),)),
    Case("sum dims keepdim", lambda m, x: x.sum((0, -1), keepdim=True), ((3, 4, 2),)),
    Case("sum axis keepdims", lambda m, x: x.sum(axis=0, keepdims=True), ((3, 4),)),
    Case("sum 0-d", lambda m, x: m.sum(x), ((),)),
    Case("mean", lambda m, x: m.mean(x), ((3, 4),)),
    Case("mean dim", lambda m, x: x.mean(-1, keepdim=True), ((3, 4),)),
    Case("var", lambda m, x: m.var(x), ((3, 4),)),
    Case("var_mean", lambda m, x: sum(m.var_mean(x, 1)), ((3, 4),)),
    Case("bernoulli of ones", lambda m, x: m.bernoulli(x * 0 + 1) * x, ((3, 4),)),
    Case("var dim", lambda m, x: m.var(x, dim=0, correction=0), ((3, 4),)),
    Case("std", lambda m, x: m.std(x, dim=1, keepdim=True), ((3, 4),)),
    Case("norm", lambda m, x: m.norm(x), ((3, 4),)),
    Case("norm dim", lambda m, x: x.norm(dim=1), ((3, 4),)),
    Case("norm 1", lambda m, x: x.norm(1, 0), ((3, 4),)),
    Case("norm 3", lambda m, x: m.norm(x, 3, dim=(0, 1)), ((3, 4),)),
    Case("norm inf", lambda m, x: x.norm(float("inf"), 1, True), ((3, 4),)),
    Case("dist", lambda m, a, b: m.dist(a, b), ((3,), (3,))),
    Case("max", lambda m, x: m.max(x), ((3, 4),)),
    Case("min", lambda m, x: m.min(x), ((3, 4),)),
    Case("max dim", lambda m, x: m.max(x, 1).values, ((3, 4),)),
    Case("min dim keepdim", lambda m, x: m.min(x, 0, keepdim=True)[0], ((3, 4),)),
    Case("amax", lambda m, x: m.amax(x, dim=(0, 2)), ((2, 3, 2),)),
    Case("amin", lambda m, x: m.amin(x, dim=1, keepdim=True), ((2, 3, 2),)),
    Case("logsumexp", lambda m, x: m.logsumexp(x, 1), ((3, 4),)),
    Case("logsumexp keepdim", lambda m, x: m.logsumexp(x, (0, 1), keepdim=True), ((3, 4),)),
    Case("cumsum", lambda m, x: m.cumsum(x, 1), ((3, 4),)),
    Case("prod", lambda m, x: m.prod(x), ((5,),)),
    Case("prod dim", lambda m, x: m.prod(x, 1), ((3, 4, 2),)),
    Case("prod keepdim", lambda m, x: x.prod(0, keepdim=True), ((7, 2),)),
    Case("prod of one", lambda m, x: x.prod() + x.prod(-1), ((),)),
    Case("prod zero", lambda m, x: m.prod(x, 0), (np.array([[0.0, 0, 1], [2, 1, 3]]),)),
    Case("prod zeros", lambda m, x: m.prod(x), (np.array([0.0, 2, 0, 3]),)),
    Case("cumprod", lambda m, x: m.cumprod(x, 1), ((2, 5, 2),)),
    Case("cumprod zeros", lambda m, x: m.cumprod(x, 0), (np.array([2.0, 0, 3, 0, 1]),)),
    Case("cumprod of one", lambda m, x: x.cumprod(0), ((1, 3),)),
]

_index = np.array([2, 0, 2, 1])
_mask = np.array([True, False, True])
_shapes = [
    Case("reshape", lambda m, x: x.reshape(2, -1), ((3, 4),)),
    Case("view", lambda m, x: x.view(12), ((3, 4),)),
    Case("flatten", lambda m, x: m.flatten(x, 1), ((2, 3, 2),)),
    Case("squeeze", lambda m, x: m.squeeze(x), ((1, 3, 1),)),
    Case("unsqueeze", lambda m, x: x.unsqueeze(-1) * x.unsqueeze(0), ((3,),)),
    Case("permute", lambda m, x: m.permute(x, (2, 0, 1)), ((2, 3, 4),)),
    Case("transpose", lambda m, x: m.transpose(x, 0, -1), ((2, 3, 4),)),
    Case("T", lambda m, x: x.T * 2, ((2, 3),)),
    Case("movedim", lambda m, x: m.movedim(x, 0, 2), ((2, 3, 4),)),
    Case("expand", lambda m, x: x.expand(2, 3, -1), ((3, 1),)),
    Case("repeat", lambda m, x: x.repeat(2, 3), ((2,),)),
    Case("flip", lambda m, x: m.flip(x, (0, 1)), ((2, 3),)),
    Case("clone", lambda m, x: x.clone(), ((2, 3),)),
    Case("cat", lambda m, a, b: m.cat([a, b, a], 1), ((2, 3), (2, 1))),
    Case("stack", lambda m, a, b: m.stack([a, b], -1), ((2, 3), (2, 3))),
    Case("split", lambda m, x: m.split(x, 2, 1)[1] * m.chunk(x, 2)[0].sum(), ((2, 3),)),
    Case("unbind", lambda m, x: m.unbind(x, 1)[2], ((2, 3),)),
    Case("getitem int", lambda m, x: x[1], ((3, 4),)),
    Case("getitem element", lambda m, x: x[1, -2], ((3, 4),)),
    Case("getitem slice", lambda m, x: x[1:, ::2, None], ((3, 4),)),
    Case("getitem ellipsis", lambda m, x: x[..., 0], ((3, 4, 2),)),
    Case("getitem repeated", lambda m, x: x[_index], ((3, 2),)),
    Case("getitem arrays", lambda m, x: x[[0, 2, 0], [1, 1, 1]], ((3, 2),)),
    Case("getitem mixed", lambda m, x: x[:, [0, 1, 1]], ((3, 2),)),
    Case("getitem mask", lambda m, x: x[m.tensor(_mask)], ((3, 2),)),
    Case("gather", lambda m, x: m.gather(x, 1, m.tensor([[0, 0], [2, 1]])), ((3, 3),)),
    Case(
        "scatter",
        lambda m, x, y: m.scatter(x, 1, m.tensor([[0, 2, 3], [1, 0, 2]]), y),
        ((3, 4), (2, 3)),
    ),
    Case("scatter number", lambda m, x: x.scatter(0, m.tensor([[0, 2]]), 1.5), ((3, 4),)),
    Case(
        "index_copy",
        lambda m, x, y: m.index_copy(x, 1, m.tensor([2, 0]), y),
        ((2, 4), (2, 2)),
    ),
    Case("index_fill", lambda m, x: x.index_fill(0, m.tensor([1, 2]), 3.0), ((4, 2),)),
    Case(
        "masked_scatter",
        lambda m, x, y: m.masked_scatter(x, m.tensor(_mask), y),
        ((2, 3), (2, 3)),
    ),
    Case("take", lambda m, x: m.take(x, m.tensor([[0, 5], [5, 2]])), ((2, 3),)),
    Case("hstack", lambda m, a, b: m.hstack([a, b]), ((2, 1), (2, 2))),
    Case("vstack", lambda m, a, b: m.vstack([a, b]), ((3,), (2, 3))),
    Case("meshgrid", lambda m, a, b: m.meshgrid(a, b, indexing="xy")[0] * a[0], ((3,), (2,))),
    Case(
        "broadcast_tensors",
        lambda m, a, b: m.broadcast_tensors(a, b)[0] * m.broadcast_tensors(a, b)[1],
        ((3, 1), (2,)),
    ),
    Case("tril_", lambda m, x: (x * 2).tril_(1), ((3, 4),)),
    Case("addcdiv_", lambda m, x, y: (x * 2).addcdiv_(x, y, value=-0.5), ((3,), positive(3))),
    Case("lerp_", lambda m, x, y: (x * y).lerp_(y, 0.2), ((3,), (3,))),
    Case("cumsum_", lambda m, x: (x * 2).cumsum_(0), ((3,),)),
    Case("addmm_", lambda m, c, a, b: (c * 2).addmm_(a, b), ((2, 4), (2, 3), (3, 4))),
    Case(
        "scatter_add_",
        lambda m, x, y: (x * 1).scatter_add_(1, m.tensor([[0, 0], [1, 2]]), y * x[0, 0]),
        ((3, 4), (2, 2)),
    ),
    Case("masked_select", lambda m, x: m.masked_select(x, m.tensor(_mask)), ((2, 3),)),
    Case("tril", lambda m, x: m.tril(x, 1) * x, ((2, 3, 4),)),
    Case("triu", lambda m, x: x.triu(-1), ((3, 4),)),
    Case("diag", lambda m, x: m.diag(m.diag(x, -1)), ((3, 3),)),
    Case("trace", lambda m, x: m.trace(x), ((3, 3),)),
    Case("roll", lambda m, x: m.roll(x, (1, -2), (0, 1)), ((2, 5),)),
    Case("roll flat", lambda m, x: m.roll(x, 3) * x, ((2, 4),)),
    Case("diff", lambda m, x: m.diff(x, 2, 0), ((4, 2),)),
    Case("repeat_interleave", lambda m, x: x.repeat_interleave(2, 1), ((2, 2),)),
    Case(
        "scatter_add",
        lambda m, x, y: m.scatter_add(x, 1, m.tensor([[0, 0, 2], [1, 0, 1]]), y),
        ((3, 4), (2, 3)),
    ),
    Case(
        "index_add",
        lambda m, x, y: x.index_add(1, m.tensor([0, 2, 0]), y, alpha=0.5),
        ((2, 4), (2, 3)),
    ),
    Case("pad", lambda m, x: m.pad(x, (1, 2, 0, -1), value=2.0), ((2, 3),)),
    Case("pad reflect", lambda m, x: m.pad(x, (2, 1), mode="reflect"), ((1, 2, 4),)),
    Case("pad circular", lambda m, x: m.pad(x, (1, 2), "circular"), ((1, 2, 4),)),
    Case("sort", lambda m, x: m.sort(x, 0, descending=True).values, ((4, 2),)),
    Case("topk", lambda m, x: m.topk(x, 2)[0], ((3, 4),)),
    Case("topk smallest", lambda m, x: x.topk(2, 0, largest=False).values, ((3, 4),)),
    Case("index_select", lambda m, x: m.index_select(x, 1, m.tensor([1, 1, 0])), ((2, 3),)),
]


def _written(m: Any, x: Any, value: Any, place: Any) -> Any:
    """A copy of ``x`` with ``value`` at ``place``."""
    copy = x * 1
    copy[m.tensor(place) if isinstance(place, np.ndarray) else place] = value
    return copy


_overwriting = [
    Case("select", lambda m, x: m.select(x, 1, -1), ((2, 3, 2),)),
    Case("narrow", lambda m, x: m.narrow(x, 1, -2, 2), ((2, 3, 2),)),
    Case("diagonal", lambda m, x: m.diagonal(x), ((3, 4),)),
    Case("diagonal offset", lambda m, x: m.diagonal(x, -1, 2, 1), ((3, 4, 2),)),
    Case(
        "masked_fill",
        lambda m, x, v: m.masked_fill(x, m.tensor([True, False, True]), v),
        ((2, 3), ()),
    ),
    Case(
        "index_put",
        lambda m, x, v: m.index_put(x, (m.tensor([1, 0]),), v),
        ((3, 2), (2,)),
    ),
    Case("setitem slice", lambda m, x, v: _written(m, x, v, (slice(1, 3), 0)), ((3, 2), ())),
    Case("setitem array", lambda m, x, v: _written(m, x, v, np.array([2, 0])), ((3, 2), (2, 1))),
    Case("setitem mask", lambda m, x, v: _written(m, x, v, _mask), ((3, 2), (2,))),
    Case("zero", lambda m, x: (x * 1).zero_(), ((3,),)),
    Case("fill", lambda m, x, v: (x * 1).fill_(v), ((3,), ())),
    Case("copy", lambda m, x, v: (x * 1).copy_(v), ((2, 3), (3,))),
    Case("uniform", lambda m, x: (x * 1).uniform_() * 0, ((3,),)),
    Case("normal", lambda m, x: (x * 1).normal_() * 0, ((3,),)),
]

_linear = [
    Case("matmul", lambda m, a, b: m.matmul(a, b), ((2, 3), (3, 4))),
    Case("matmul vectors", lambda m, a, b: a @ b, ((3,), (3,))),
    Case("matmul vector left", lambda m, a, b: a @ b, ((3,), (2, 3, 4))),
    Case("matmul vector right", lambda m, a, b: a @ b, ((2, 2, 3), (3,))),
    Case("matmul folded", lambda m, a, b: a @ b, ((2, 2, 3), (3, 4))),
    Case("matmul batch", lambda m, a, b: a @ b, ((2, 1, 2, 3), (4, 3, 2))),
    Case("matmul itself", lambda m, a: a @ a.T, ((2, 3),)),
    Case("bmm", lambda m, a, b: m.bmm(a, b), ((2, 2, 3), (2, 3, 2))),
    Case("mv", lambda m, a, b: m.mv(a, b), ((3, 2), (2,))),
    Case("outer", lambda m, a, b: m.outer(a, b), ((3,), (2,))),
    Case("addmm", lambda m, c, a, b: m.addmm(c, a, b, beta=2, alpha=0.5), ((4,), (2, 3), (3, 4))),
    Case("baddbmm", lambda m, c, a, b: c.baddbmm(a, b), ((2, 2, 2), (2, 2, 3), (2, 3, 2))),
    Case("einsum product", lambda m, a, b: m.einsum("ij,jk->ki", a, b), ((2, 3), (3, 4))),
    Case("einsum batch", lambda m, a, b: m.einsum("bij, bjk", a, b), ((2, 2, 3), (2, 3, 2))),
    Case("einsum trace", lambda m, a: m.einsum("ii", a), ((3, 3),)),
    Case("einsum diagonal", lambda m, a: m.einsum("bii->ib", a), ((2, 3, 3),)),
    Case("einsum outer", lambda m, a, b: m.einsum("i,j->ij", a, b), ((3,), (2,))),
    Case("einsum sum", lambda m, a, b: m.einsum("ijk,lj->", a, b), ((2, 3, 2), (4, 3))),
    Case(
        "einsum ellipsis",
        lambda m, a, b: m.einsum("...i,...ij->...j", a, b),
        ((2, 1, 3), (4, 3, 2)),
    ),
    Case(
        "einsum three",
        lambda m, a, b, c: m.einsum("ia,ib,abk->ik", [a, b, c]),
        ((2, 3), (2, 4), (3, 4, 2)),
    ),
    Case("inner", lambda m, a, b: m.inner(a, b), ((2, 3), (4, 3))),
    Case("tensordot", lambda m, a, b: m.tensordot(a, b), ((2, 3, 4), (3, 4, 2))),
    Case(
        "tensordot dims",
        lambda m, a, b: m.tensordot(a, b, dims=([0, 2], [1, 0])),
        ((2, 3, 4), (4, 2, 2)),
    ),
    Case("vdot", lambda m, a, b: m.vdot(a, b), ((3,), (3,))),
    Case("linear", lambda m, x, w, b: m.linear(x, w, b), ((2, 3), (4, 3), (4,))),
    Case("linear batch", lambda m, x, w, b: m.linear(x, w, b), ((2, 2, 3), (4, 3), (4,))),
    Case("linear vector", lambda m, x, w: m.linear(x, w), ((3,), (4, 3))),
]

_windows = [
    Case("conv2d", lambda m, x, w, b: m.conv2d(x, w, b), ((2, 2, 4, 5), (3, 2, 3, 2), (3,))),
    Case(
        "conv2d geometry",
        lambda m, x, w: m.conv2d(x, w, None, stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
        ((2, 2, 5, 4), (2, 2, 3, 2)),
    ),
    Case(
        "conv2d groups",
        lambda m, x, w, b: m.conv2d(x, w, b, groups=2, padding=1),
        ((1, 4, 3, 3), (2, 2, 3, 3), (2,)),
    ),
    Case("conv2d 1x1", lambda m, x, w: m.conv2d(x, w, stride=2), ((2, 2, 4, 4), (3, 2, 1, 1))),
    Case("max_pool2d", lambda m, x: m.max_pool2d(x, 2), ((2, 2, 4, 5),)),
    Case(
        "max_pool2d overlapping",
        lambda m, x: m.max_pool2d(x, 3, stride=1, padding=1),
        ((1, 2, 4, 4),),
    ),
    Case("avg_pool2d", lambda m, x: m.avg_pool2d(x, 2), ((2, 2, 4, 5),)),
    Case(
        "avg_pool2d padding",
        lambda m, x: m.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False),
        ((1, 2, 5, 5),),
    ),
    Case("adaptive_avg_pool2d", lambda m, x: m.adaptive_avg_pool2d(x, (2, 1)), ((1, 2, 4, 3),)),
]

_classes = np.array([2, 0, 1])
_per_pixel = np.array([[[0, 2], [1, -100]]])
_networks = [
    Case("normalize", lambda m, x: m.normalize(x, dim=0), ((3, 4),)),
    Case("cosine_similarity", lambda m, a, b: m.cosine_similarity(a, b), ((3, 4), (3, 4))),
    Case("softmax", lambda m, x: m.softmax(x, 1), ((3, 4),)),
    Case("log_softmax", lambda m, x: m.log_softmax(x, -1), ((3, 4),)),
    Case("gelu", lambda m, x: m.gelu(x), ((3, 4),)),
    Case("gelu tanh", lambda m, x: m.gelu(x, approximate="tanh"), ((3, 4),)),
    Case("silu", lambda m, x: m.silu(x), ((3, 4),)),
    Case("leaky_relu", lambda m, x: m.leaky_relu(x, 0.2), ((3, 4),)),
    Case("elu", lambda m, x: m.elu(x, 1.5), ((3, 4),)),
    Case("logsigmoid", lambda m, x: m.logsigmoid(x * 3), ((3, 4),)),
    Case("embedding", lambda m, x: m.embedding(m.tensor([[0, 2], [2, 1]]), x), ((3, 2),)),
    Case(
        "embedding by frequency",
        lambda m, x: m.embedding(m.tensor([[0, 2], [2, 1]]), x, scale_grad_by_freq=True),
        ((3, 2),),
    ),
    Case("embedding of one", lambda m, x: m.embedding(m.tensor(1), x), ((3, 2),)),
    Case(
        "kl_div",
        lambda m, x, y: m.kl_div(x, m.softmax(y, 1), reduction="batchmean"),
        ((3, 4), (3, 4)),
    ),
    Case(
        "kl_div log", lambda m, x, y: m.kl_div(x, y, reduction="sum", log_target=True), ((3,), (3,))
    ),
    Case("softplus", lambda m, x: m.softplus(x, beta=2), ((3, 4),)),
    Case(
        "batch_norm",
        lambda m, x, w, b: m.batch_norm(x, None, None, w, b, training=True),
        ((4, 3), (3,), (3,)),
    ),
    Case(
        "batch_norm images",
        lambda m, x, w, b: m.batch_norm(x, None, None, w, b, training=True),
        ((2, 2, 2, 3), (2,), (2,)),
    ),
    Case(
        "batch_norm evaluation",
        lambda m, x, w, b: m.batch_norm(
            x,
            m.tensor(np.array([0.1, -0.2])).to(x.dtype),
            m.tensor(np.array([1.5, 0.7])).to(x.dtype),
            w,
            b,
        ),
        ((2, 2, 2), (2,), (2,)),
    ),
    Case(
        "layer_norm",
        lambda m, x, w, b: m.layer_norm(x, (2, 3), w, b),
        ((2, 2, 3), (2, 3), (2, 3)),
    ),
    Case("layer_norm plain", lambda m, x: m.layer_norm(x, (4,)), ((2, 3, 4),)),
    Case("dropout of nothing", lambda m, x: m.dropout(x, 0.0) * 2, ((3,),)),
    Case("dropout of all", lambda m, x: m.dropout(x, 1.0) + x, ((3,),)),
    Case("mse_loss", lambda m, a, b: m.mse_loss(a, b), ((3, 4), (3, 4))),
    Case("mse_loss sum", lambda m, a, b: m.mse_loss(a, b, reduction="sum"), ((3,), (3,))),
    Case("mse_loss none", lambda m, a, b: m.mse_loss(a, b, reduction="none"), ((3,), (3,))),
    Case("l1_loss", lambda m, a, b: m.l1_loss(a, b), ((3, 4), (3, 4))),
    Case("smooth_l1_loss", lambda m, a, b: m.smooth_l1_loss(a, b, beta=0.7), ((9,), (9,))),
    Case("nll_loss", lambda m, x: m.nll_loss(x, m.tensor(_classes)), ((3, 4),)),
    Case(
        "cross_entropy",
        lambda m, x: m.cross_entropy(x, m.tensor(_classes), label_smoothing=0.1),
        ((3, 4),),
    ),
    Case(
        "cross_entropy weights",
        lambda m, x: m.cross_entropy(
            x,
            m.tensor(_per_pixel),
            weight=m.tensor(np.array([0.5, 1.0, 2.0])),
            label_smoothing=0.2,
        ),
        ((1, 3, 2, 2),),
    ),
    Case(
        "cross_entropy none",
        lambda m, x: m.cross_entropy(x, m.tensor(_per_pixel), reduction="none"),
        ((1, 3, 2, 2),),
    ),
    Case("cross_entropy single", lambda m, x: m.cross_entropy(x, m.tensor(1)), ((4,),)),
    Case(
        "cross_entropy soft",
        lambda m, x, p: m.cross_entropy(x, p, reduction="sum"),
        ((3, 4), positive(3, 4)),
    ),
    Case(
        "binary_cross_entropy",
        lambda m, x, y: m.binary_cross_entropy(m.sigmoid(x), y),
        ((5,), inside(5) ** 2),
    ),
    Case(
        "binary_cross_entropy_with_logits",
        lambda m, x, y: m.binary_cross_entropy_with_logits(x, y, reduction="none"),
        ((5,), inside(5) ** 2),
    ),
]

_REAL = [
    *_unary(),
    *_binary,
    *_composed,
    *_reductions,
    *_shapes,
    *_overwriting,
    *_linear,
    *_windows,
    *_networks,
    *(
        Case(*entry)
        for cases in (matrix_cases, layer_cases, fourier_cases, special_cases, rearrangement_cases)
        for entry in cases.ENTRIES
    ),
]

#: Cases that are tried with complex numbers too.
_ALSO_COMPLEX = (
    "vdot|inner|tensordot|scatter|lerp_|exp|expm1|sin|cos|tan|tanh|sinh|cosh|sigmoid|arctan|arcsin|arccos|neg|abs|square|log|sqrt|"
    "rsqrt|reciprocal|log1p|asinh|acosh|atanh|exp2|log2|log10|einsum three|norm 3|cumprod|add|"
    "add broadcasting|add alpha|add 0-d|sub|rsub scalar|mul|mul itself|mul scalar|div|"
    "div scalar|pow|pow 2|pow 3|pow half|pow 0|pow -1|rpow|sum dim|sum dims keepdim|mean|"
    "mean dim|var|var dim|std|norm|norm dim|logsumexp|logsumexp keepdim|cumsum|prod|prod dim|"
    "reshape|flatten|permute|T|expand|repeat|flip|clone|cat|stack|split|unbind|getitem slice|"
    "getitem repeated|getitem mask|gather|matmul|matmul vectors|matmul folded|matmul batch|"
    "matmul itself|linear|conv2d geometry|l1_loss|"
    + matrix_cases.ALSO_COMPLEX
    + "|"
    + fourier_cases.ALSO_COMPLEX
)


def _complex_values(*shape: int) -> np.ndarray:
    real, imag = np.random.default_rng(9).uniform(-2, 2, (2, *shape))
    return np.asarray(real + 1j * imag)


def _with_complex_inputs(case: Case) -> Case:
    """``case`` where each real input has got an imaginary part."""
    arrays = case.arrays()
    inputs = tuple(np.asarray(a + 0.7j * np.cos(a + i)) for i, a in enumerate(arrays))
    return case._replace(name=f"complex {case.name}", inputs=inputs)


def _only_complex() -> list[Case]:
    def z(*shape: int) -> tuple[np.ndarray]:
        return (_complex_values(*shape),)

    real, imag = _complex_values(3, 2).real.copy(), _complex_values(3, 2).imag.copy()
    return [
        Case("real", lambda m, x: m.real(x), z(2, 3)),
        Case("imag", lambda m, x: m.imag(x) * 2, z(2, 3)),
        Case("conj", lambda m, x: m.conj(x) * x * 1j, z(2, 3)),
        Case("angle", lambda m, x: m.angle(x), z(2, 3)),
        Case("angle of real", lambda m, x: m.angle(x) + x, ((5,),)),
        Case("sgn", lambda m, x: m.sgn(x), z(2, 3)),
        Case("abs squared", lambda m, x: (x * m.conj(x)).real, z(2, 3)),
        Case("adjoint", lambda m, x: x.mH @ x, z(2, 3)),
        Case("complex", lambda m, a, b: m.complex(a, b) * (1 + 2j), (real, imag)),
        Case("polar", lambda m, a, b: m.polar(a, b), (positive(3, 2), imag)),
        Case("view_as_real", lambda m, x: m.view_as_real(x) * m.tensor(real), z(3)),
        Case("view_as_complex", lambda m, x: m.view_as_complex(x.clone()) ** 2, (real,)),
        Case("real times complex", lambda m, a, x: a * x + x * a.sum(), (real, *z(3, 2))),
        Case("complex power", lambda m, x: x ** (1 - 0.5j), z(4)),
        Case("complex base", lambda m, x: (1 - 0.5j) ** x, z(4)),
        Case("real to complex power", lambda m, a, x: (a * a + 0.1) ** x, (real, *z(3, 2))),
        Case("complex where", lambda m, x: m.where(m.real(x) > 0, x, 2j * x), z(5)),
    ]


_by_name = {case.name: case for case in _REAL}

CASES = [
    *_REAL,
    *(_with_complex_inputs(_by_name[name]) for name in _ALSO_COMPLEX.split("|")),
    *_only_complex(),
]

assert len({case.name for case in CASES}) == len(CASES), "two cases have the same name"
