"""random_program(): seeded forward passes of real operators, for comparing one engine with another.

The same seed records the same graph with the same values. Sizes run from single elements, whose
gradients travel inside messages, to some 100 KB, which need blocks; leaves come in C and Fortran
order and as strided views; values are used many times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, TypeAlias

import numpy as np

import mpgrad.tensor_methods  # noqa: F401  (completes Tensor)
from mpgrad.ops.by_index import indexing
from mpgrad.ops.elementwise import arithmetic, minimum_maximum, transcendental
from mpgrad.ops.linear_algebra import matrix_products, norms
from mpgrad.ops.neural import activation
from mpgrad.ops.new_tensors import creation
from mpgrad.ops.reductions import extrema, reduction
from mpgrad.ops.shapes import shape
from mpgrad.recording.tensors.tensor import Tensor

#: Rows and columns that one program's matrices are made of.
SIZES = ((1, 1, 1), (1, 3, 5), (2, 4, 7), (6, 12, 16), (8, 24, 60), (32, 100, 130), (64, 128, 192))
LEAVES = (2, 6)
STEPS = (4, 40)


class Program(NamedTuple):
    """A recorded forward pass."""

    leaves: list[Tensor]
    #: A non-leaf in the middle of the graph.
    inner: Tensor
    loss: Tensor


def random_program(seed: int, devices: Sequence[str] = ()) -> Program:
    """Record the program that belongs to ``seed``.

    Args:
        seed: decides everything.
        devices: each step runs on one of these, and its operands are moved there; by default all
            are where they are made, on the CPU.
    """
    return _Recording(seed, devices).program()


Rule: TypeAlias = Callable[["_Recording"], Tensor]


class _Recording:
    """A pool of matrices that grows by one random step at a time; all values stay near one."""

    def __init__(self, seed: int, devices: Sequence[str]) -> None:
        self._devices, self._device = devices, ""
        self.rng = Random(seed)
        self._values = np.random.default_rng(seed)
        self.sizes = self.rng.choice(SIZES)
        self.leaves = [self._leaf() for _ in range(self.rng.randint(*LEAVES))]
        self.pool = list(self.leaves)

    def program(self) -> Program:
        for _ in range(self.rng.randint(*STEPS)):
            self._device = self.rng.choice(self._devices) if self._devices else ""
            self.pool.append(self.rng.choice(RULES)(self))
        inner = self.pool[len(self.leaves)]
        # Whatever nobody used flows into the loss, and some of what was used does so again.
        ends = [self.rng.choice(self.pool) for _ in range(3)]
        parts = [*self.leaves, inner, self.pool[-1], *ends]
        terms = [self._here((value * value).mean()) for value in parts]
        loss = terms[0]
        for term in terms[1:]:
            loss = loss + term
        return Program(self.leaves, inner, loss)

    # ------------------------------------------------------------------ what rules ask for

    def size(self) -> int:
        return self.rng.choice(self.sizes)

    def any(self) -> Tensor:
        """Any matrix, recent ones more often."""
        recent = self.pool[-4:] if self.rng.random() < 0.5 else self.pool
        return self._here(self.rng.choice(recent))

    def fitting(self, rows: int, columns: int) -> Tensor:
        """A matrix of the given shape: one of the pool, or one that is tiled from it."""
        found = [value for value in self.pool if value.shape == (rows, columns)]
        if found and self.rng.random() < 0.9:
            return self._here(self.rng.choice(found))
        source = self.any()
        row = [number % source.shape[0] for number in range(rows)]
        column = [number % source.shape[1] for number in range(columns)]
        return source[row][:, column]

    def _here(self, value: Tensor) -> Tensor:
        """``value`` on the device of this step."""
        return value.to(self._device) if self._device else value

    def _leaf(self) -> Tensor:
        dtype = np.float64 if self.rng.random() < 0.1 else np.float32
        rows, columns = self.size(), self.size()
        values = self._values.uniform(-1, 1, (2 * rows, columns)).astype(dtype)
        layout = self.rng.choice(("C", "C", "Fortran", "strided", "arena"))
        if layout == "strided":
            return creation.from_numpy(values[::2]).requires_grad_()
        if layout == "arena":
            return creation.tensor(values[:rows], requires_grad=True)
        if layout == "Fortran":
            return creation.from_numpy(np.asfortranarray(values[:rows])).requires_grad_()
        return creation.from_numpy(values[:rows]).requires_grad_()


# ---------------------------------------------------------------------- the steps

_UNARY: tuple[Callable[[Tensor], Tensor], ...] = (
    transcendental.tanh,
    transcendental.sigmoid,
    transcendental.relu,
    transcendental.sin,
    transcendental.cos,
    arithmetic.abs,
    arithmetic.neg,
    activation.gelu,
    activation.silu,
    lambda x: transcendental.exp(transcendental.tanh(x)),
    lambda x: transcendental.log(arithmetic.abs(x) + 1),
    lambda x: arithmetic.sqrt(x * x + 0.5),
    lambda x: minimum_maximum.clamp(x, -0.5, 0.7),
    lambda x: 1 / (x * x + 1) - x / 3,
    lambda x: x**2 * 0.5,
)


def _unary(r: _Recording) -> Tensor:
    return r.rng.choice(_UNARY)(r.any())


def _binary(r: _Recording) -> Tensor:
    x = r.any()
    y = r.fitting(*x.shape)
    rules: tuple[Callable[[], Tensor], ...] = (
        lambda: x + y,
        lambda: x - y,
        lambda: x * y,
        lambda: x / (arithmetic.abs(y) + 1),
        lambda: minimum_maximum.maximum(x, y),
        lambda: minimum_maximum.minimum(x, y),
        lambda: minimum_maximum.where(x > y, x * 0.5, y),
    )
    return r.rng.choice(rules)()


def _broadcast(r: _Recording) -> Tensor:
    x = r.any()
    rows, columns = x.shape
    y = r.fitting(*r.rng.choice(((1, columns), (rows, 1), (1, 1))))
    return x + y if r.rng.random() < 0.5 else x * y


def _product(r: _Recording) -> Tensor:
    x = r.any()
    y = r.fitting(x.shape[1], r.size())
    return transcendental.tanh(matrix_products.matmul(x, y.to(x.dtype)))


def _gram(r: _Recording) -> Tensor:
    x = r.any()
    product = x.t() @ x if r.rng.random() < 0.5 else x @ x.t()
    return product / max(x.shape)


def _linear(r: _Recording) -> Tensor:
    x = r.any()
    width = r.size()
    weight, bias = (r.fitting(*s).to(x.dtype) for s in ((width, x.shape[1]), (1, width)))
    return transcendental.relu(matrix_products.linear(x, weight, bias.reshape(width))) / x.shape[1]


def _reduction(r: _Recording) -> Tensor:
    x, dim = r.any(), r.rng.randrange(2)
    rules: tuple[Callable[[], Tensor], ...] = (
        lambda: x - x.mean(dim, keepdim=True),
        lambda: x / (x.abs().sum(dim, keepdim=True) + 1),
        lambda: x - reduction.logsumexp(x, dim, keepdim=True),
        lambda: x * norms.norm(x) / (x.numel() + 1),
        lambda: extrema.amax(x, dim, keepdim=True) - x,
        lambda: reduction.cumsum(x, dim) / x.shape[dim],
        lambda: x + x.sum() / x.numel(),
        lambda: activation.softmax(x, dim),
        lambda: activation.log_softmax(x, dim) * 0.1,
        lambda: x / (reduction.var(x, dim, correction=0, keepdim=True) + 1),
    )
    return r.rng.choice(rules)()


def _shape(r: _Recording) -> Tensor:
    x = r.any()
    rows, columns = x.shape
    rules: tuple[Callable[[], Tensor], ...] = (
        lambda: x.reshape(columns, rows),
        lambda: x.transpose(0, 1),
        lambda: shape.flip(x, 0),
        lambda: x.reshape(rows, 1, columns).permute(2, 1, 0).reshape(columns, rows),
        lambda: shape.cat([x, r.fitting(r.size(), columns), x * 2])[-rows:],
        lambda: shape.stack([x, r.fitting(rows, columns), x], 1).mean(1),
        lambda: shape.cat([x[::2], x[1::2]]),
        lambda: x[[row // 2 for row in range(rows)]],
        lambda: x[:1].expand(rows, columns),
        lambda: shape.cat(indexing.split(x, max(rows // 2, 1))[::-1]),
    )
    return r.rng.choice(rules)()


def _shared(r: _Recording) -> Tensor:
    """One value with many uses: a wide sum of gradients."""
    x = r.any()
    total = x
    for number in range(r.rng.randint(2, 6)):
        total = total + transcendental.sin(x * (0.3 + number))
    return total / 4


RULES: tuple[Rule, ...] = (
    _unary,
    _unary,
    _binary,
    _binary,
    _broadcast,
    _product,
    _product,
    _gram,
    _linear,
    _reduction,
    _shape,
    _shape,
    _shared,
)
