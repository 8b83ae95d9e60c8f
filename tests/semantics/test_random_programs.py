"""Random programs of a user: recorded operations, views, in-place changes, hooks, then backwards.

What the rows promise one by one has to hold in any mixture. Left out is only what PyTorch itself
calls an implementation detail, or gets wrong; the comments say what that is.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.semantics.paired import paired, values

#: What may be done with two tensors of shape (2, 3); an in-place change returns None.
OPERATIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda lib, a, b: a + b,
    "mul": lambda lib, a, b: a * b,
    "square": lambda lib, a, b: a * a,
    "exp": lambda lib, a, b: (a * 0.1).exp(),
    "sin": lambda lib, a, b: a.sin(),
    "sum": lambda lib, a, b: a.sum(0, keepdim=True) * b,
    "number": lambda lib, a, b: a[:, :2].sum() * b,
    "cat": lambda lib, a, b: lib.cat([a, b], 0)[1:3],
    "view": lambda lib, a, b: a.view(3, 2).view(2, 3),
    "transposed": lambda lib, a, b: a.permute(1, 0).permute(1, 0),
    "detached": lambda lib, a, b: a.detach(),
    "mul_": lambda lib, a, b: _in_place(a.mul_, b),
    "add_": lambda lib, a, b: _in_place(a.add_, b),
    "mul_ of a row": lambda lib, a, b: _in_place(a[0].mul_, 2),
    "setitem": lambda lib, a, b: _in_place(a.__setitem__, 1, b[0]),
}


def _in_place(method: Callable[..., Any], *arguments: Any) -> None:
    method(*arguments)


class Program:
    """One random program; everything it does depends on ``seed`` alone."""

    def __init__(self, lib: Any, seed: int) -> None:
        self.lib, self.random = lib, random.Random(seed)
        self.constant = lib.tensor(values(2, 3, seed=seed + 1000))
        self.tensors = [
            lib.tensor(values(2, 3, seed=3 * seed + nr)).requires_grad_() for nr in range(3)
        ]
        self.seen: list[Any] = []

    def run(self) -> list[Any]:
        for _ in range(self.random.randint(3, 14)):
            self.note_error(self.step)
        roots = [self.pick() for _ in range(2)]
        for keep in (True, False):
            if not self.note_error(lambda keep=keep: self.differentiate(roots, keep)):
                # A backward that failed has added to some leaves in PyTorch, and to none here.
                return self.seen
        return self.seen + [self.state_of(tensor) for tensor in self.tensors]

    def pick(self) -> Any:
        return self.random.choice(self.tensors)

    def note_error(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except (RuntimeError, ValueError) as error:
            self.seen.append(error)
            return False
        return True

    # ------------------------------------------------------------------ forward

    def step(self) -> None:
        a, b = self.pick(), self.pick()
        name = self.random.choice([*OPERATIONS, "constant", "no_grad", "hook", "retain", "switch"])
        if name == "hook":
            a.register_hook(self.hook(self.random.random()))
        elif name == "retain":
            a.retain_grad()
        elif name == "switch":
            a.requires_grad_(self.random.random() < 0.5)
        elif name == "no_grad":
            with self.lib.no_grad():
                self.tensors.append(a * 2)
        elif name == "constant":
            self.tensors.append(a * self.constant)
        else:
            made = OPERATIONS[name](self.lib, a, b)
            if made is not None:
                self.tensors.append(made)
        self._look()

    def hook(self, factor: float) -> Callable[[Any], Any]:
        def scale(grad: Any) -> Any:
            self.seen.append(grad.detach().sum())
            return grad * factor

        return scale

    def _look(self) -> None:
        """A view learns of a changed base when it is looked at; PyTorch forgets to in places."""
        for tensor in self.tensors:
            with contextlib.suppress(RuntimeError):
                _ = tensor.grad_fn

    # ------------------------------------------------------------------ backward

    def differentiate(self, roots: list[Any], keep: bool) -> None:
        autograd = self.lib.autograd
        # Behind views only, PyTorch takes a seed as it is for .grad, and then changes it in place.
        seeds = [self.constant.clone() for _ in roots]
        inputs = [self.pick() for _ in range(self.random.randint(1, 3))]
        kind = self.random.choice(["backward", "inputs", "grad", "edges", "twice"])
        if kind == "backward":
            autograd.backward(roots, seeds, retain_graph=keep)
        elif kind == "inputs":
            autograd.backward(roots, seeds, retain_graph=keep, inputs=inputs)
        elif kind == "grad":
            self.seen += autograd.grad(roots, inputs, seeds, retain_graph=keep, allow_unused=True)
        elif kind == "edges":
            edge = autograd.graph.get_gradient_edge
            roots, inputs = [edge(t) for t in roots], [edge(t) for t in inputs]
            self.seen += autograd.grad(roots, inputs, seeds, retain_graph=keep, allow_unused=True)
        else:
            grads = autograd.grad(roots, inputs, seeds, create_graph=True, allow_unused=True)
            self.seen += [None if grad is None else grad.detach() for grad in grads]
            total = sum((grad * grad).sum() for grad in grads if grad is not None)
            if not isinstance(total, int) and total.requires_grad:
                total.backward(retain_graph=True)

    def state_of(self, tensor: Any) -> Any:
        try:
            grad = None if tensor.grad is None else tensor.grad.detach()
            return tensor.requires_grad, tensor.is_leaf, tensor.retains_grad, grad, tensor.detach()
        except RuntimeError as error:
            return error


@paired("A10", "A11", "A12", "A15", "A21", "D16", "D17", "G1", rtol=1e-6, atol=1e-9)
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_random_programs(lib: Any) -> Any:
    return [Program(lib, seed).run() for seed in range(100)]
