"""Group J: random programs of views and in-place changes give PyTorch's values and gradients."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.semantics.paired import leaf, paired, values

Step = Callable[[random.Random, Any, Any], Any]


def _slice(rng: random.Random, lib: Any, t: Any) -> Any:
    dim = rng.randrange(t.ndim)
    start = rng.randrange(t.shape[dim])
    stop, step = rng.randint(start + 1, t.shape[dim]), rng.choice([1, 1, 2])
    return t[(slice(None),) * dim + (slice(start, stop, step),)]


def _select(rng: random.Random, lib: Any, t: Any) -> Any:
    dim = rng.randrange(t.ndim)
    return t[(slice(None),) * dim + (rng.randrange(t.shape[dim]),)]


def _flat(rng: random.Random, lib: Any, t: Any) -> Any:
    return t.view(-1) if t.is_contiguous() else t.unsqueeze(0)


def _diagonal(rng: random.Random, lib: Any, t: Any) -> Any:
    return t.diagonal() if t.ndim > 1 else t


def _permuted(rng: random.Random, lib: Any, t: Any) -> Any:
    return t.permute(*rng.sample(range(t.ndim), t.ndim))


VIEWS: list[Step] = [_slice, _slice, _select, _flat, _diagonal, _permuted]


def _weight(rng: random.Random, lib: Any, t: Any, leaves: list[Any]) -> Any:
    leaves.append(leaf(lib, *t.shape, seed=rng.randrange(1000)))
    return leaves[-1]


def _change(rng: random.Random, lib: Any, t: Any, leaves: list[Any]) -> None:
    """One in-place change of ``t``; none saves what a later change would make stale."""
    kind = rng.randrange(9)
    t.grad_fn  # noqa: B018  (PyTorch takes a stale view for a leaf unless somebody looks first)
    if kind == 0:
        t.mul_(_weight(rng, lib, t, leaves))
    elif kind == 1:
        t.add_(_weight(rng, lib, t, leaves), alpha=0.5)
    elif kind == 2:
        t.sin_()
    elif kind == 3:
        t.copy_(_weight(rng, lib, t, leaves))
    elif kind == 4:
        mask = lib.tensor(np.random.default_rng(rng.randrange(99)).random(tuple(t.shape)) < 0.4)
        t.masked_fill_(mask, 0.25)
    elif kind == 5:
        t[rng.randrange(t.shape[0])] = 1.5
    elif kind == 6:
        rows = lib.tensor([rng.randrange(t.shape[0]), 0])
        t[rows] = _weight(rng, lib, t[0], leaves)
    elif kind == 7:
        t.div_(1.5).neg_()
    else:
        with lib.no_grad():
            t.mul_(0.5)


def _run(lib: Any, seed: int) -> list[Any]:
    rng = random.Random(seed)
    leaves = [leaf(lib, 4, 4)]
    base = leaves[0] * 1 if seed % 3 else lib.tensor(values(4, 4))
    tensors, read = [base], []
    for _ in range(rng.randint(4, 12)):
        t = rng.choice(tensors)
        action = rng.random()
        if action < 0.45 and t.ndim:
            tensors.append(rng.choice(VIEWS)(rng, lib, t))
        elif action < 0.85 and t.ndim:
            _change(rng, lib, t, leaves)
        else:
            factor = lib.tensor(values(*t.shape, seed=seed))
            read.append((t * factor).sum())
    total = sum([t.sum() for t in tensors], sum(read, lib.tensor(0.0)))
    if not total.requires_grad:
        return [total]
    total.backward()
    flags = [(t.requires_grad, t.is_leaf, t._is_view(), t._version) for t in tensors]
    return [total, flags, [t.grad for t in leaves], [t.detach() for t in tensors]]


@paired("J1", "J5", "J6", "J7", "J10", "J15", "F1")
def test_random_programs(lib: Any) -> Any:
    return [_run(lib, seed) for seed in range(60)]


def _twice(lib: Any, seed: int) -> list[Any]:
    """The gradients of a program, and the gradients of their squares."""
    rng = random.Random(seed)
    leaves = [leaf(lib, 4, 4)]
    tensors = [leaves[0] * leaves[0]]
    for _ in range(rng.randint(4, 9)):
        t = rng.choice(tensors)
        if t.ndim and rng.random() < 0.45:
            tensors.append(rng.choice(VIEWS)(rng, lib, t))
        elif t.ndim:
            _change(rng, lib, t, leaves)
    total = sum((t * t).sum() for t in tensors)
    first = lib.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
    squares = sum((g * g).sum() for g in first if g is not None)
    second = lib.autograd.grad(squares, leaves, allow_unused=True)
    return [[None if g is None else g.detach() for g in first], second]


@paired("J6", "J7", "E6")
def test_random_programs_differentiated_twice(lib: Any) -> Any:
    return [_twice(lib, seed) for seed in range(25)]
