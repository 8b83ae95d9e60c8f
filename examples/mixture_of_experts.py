"""A mixture of experts in SciPy: each expert solves a sparse system.

Forward factorizes the matrix once. The factors cannot be pickled and need not be: they stay on ctx,
in the worker that has made them, and backward solves the transposed system with them.

python examples/mixture_of_experts.py [size]
"""

import sys
import time
from typing import Any

from scipy import sparse
from scipy.sparse.linalg import splu

import mpgrad as mg

SIZE = int(sys.argv[1]) if len(sys.argv) > 1 else 200


class Solve(mg.Function):
    """``x`` with ``A x = b``."""

    @staticmethod
    def forward(ctx: Any, b: mg.Tensor, matrix: sparse.csc_array) -> Any:
        ctx.factors = splu(matrix)
        return ctx.factors.solve(b.numpy())

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> tuple[Any, None]:
        return ctx.factors.solve(grad.numpy(), trans="T"), None


def laplacian(size: int, shift: float) -> sparse.csc_array:
    """A grid of ``size`` x ``size`` points, each joined to its neighbours."""
    eye = sparse.eye_array(size)
    line = (2.0 + shift) * eye - sparse.eye_array(size, k=1) - sparse.eye_array(size, k=-1)
    matrix = (sparse.kron(line, eye) + sparse.kron(eye, line)).tocsc()
    # SciPy notes on a matrix that its indices are sorted: here, not in a worker on a copy.
    matrix.sum_duplicates()
    return matrix


mg.manual_seed(0)
experts = [laplacian(SIZE // 4, 0.1 * k) for k in range(1, 9)]
heat = mg.rand((SIZE // 4) ** 2, dtype=mg.float64, requires_grad=True)
gate = mg.zeros(len(experts), dtype=mg.float64, requires_grad=True)
optimizer = mg.optim.Adam([heat, gate], lr=0.05)


def closure() -> mg.Tensor:
    """How far the mixture of solutions is from 1, and its gradients."""
    optimizer.zero_grad()
    solutions = mg.stack(Solve.map([heat] * len(experts), experts))
    loss = (gate.softmax(0) @ solutions - 1.0).square().mean()
    loss.backward()
    return loss


def milliseconds() -> float:
    """Of one step, forward and backward; the best of three."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        closure()
        times.append(time.perf_counter() - started)
    return min(times) * 1e3


with mg.Engine(mode="local"):
    print(f"one step in this process: {milliseconds():.0f} ms")
with mg.Engine(mode="process") as engine:
    print(f"one step in workers:      {milliseconds():.0f} ms")
    for step in range(3):
        print(f"step {step}  loss {optimizer.step(closure).item():.4f}")
    print("tasks run by:", ", ".join(engine.statistics().tasks))
