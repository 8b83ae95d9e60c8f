"""A SciPy solver for each item: rods of unknown conductivity, fitted to measured temperatures.

The factorization that forward makes stays in the worker that made it, and backward uses it again.

python examples/both_passes/heat_solver.py [points of a rod]
"""

import sys
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

import mpgrad as mg

POINTS = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
RODS, STEPS = 8, 3


class SolveRod(mg.Function):
    """Temperatures ``u`` with ``K(k) u = q``: a rod of conductivities ``k`` whose ends are at 0."""

    @staticmethod
    def forward(ctx: Any, k: mg.Tensor, heat: mg.Tensor) -> np.ndarray:
        c = k.numpy()
        middle = c[:-1] + c[1:]
        stiffness = sparse.diags([-c[1:-1], middle, -c[1:-1]], [-1, 0, 1], format="csc")
        ctx.lu = splu(stiffness)  # cannot be pickled, and need not be
        ctx.u = ctx.lu.solve(heat.numpy())
        return ctx.u.copy()

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> tuple[np.ndarray, np.ndarray]:
        adjoint = ctx.lu.solve(grad.numpy(), trans="T")
        slopes = np.diff(adjoint, prepend=0.0, append=0.0) * np.diff(ctx.u, prepend=0.0, append=0.0)
        return -slopes, adjoint


def misfit(heat: mg.Tensor, measured: mg.Tensor, log_k: mg.Tensor) -> mg.Tensor:
    """How far a rod is from what was measured."""
    return (SolveRod.apply(log_k.exp(), heat) - measured).square().mean()


rng = np.random.default_rng(0)
heats = [mg.tensor(rng.random(POINTS)) for _ in range(RODS)]
truth = mg.tensor(0.3 * np.sin(np.linspace(0, 6, POINTS + 1)))
with mg.no_grad():
    measured = [SolveRod.apply(truth.exp(), heat) for heat in heats]

log_k = mg.zeros(POINTS + 1, dtype=mg.float64, requires_grad=True)
optimizer = mg.optim.Adam([log_k], lr=0.05)
for step in range(STEPS):
    losses = mg.parallel_map(misfit, heats, measured, shared=(log_k,))
    loss = mg.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}  misfit {loss.item():.12g}")
