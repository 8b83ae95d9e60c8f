"""A mixture of experts in SciPy: each expert is a sparse system that its backward solves.

python examples/mixture_of_experts.py [size]
"""

import sys
from typing import Any

from scipy import sparse
from scipy.sparse.linalg import spsolve

import mpgrad as mg

SIZE = int(sys.argv[1]) if len(sys.argv) > 1 else 200


class Solve(mg.Function):
    """``x`` with ``A x = b``. The sparse matrix stands on ctx: it travels to the worker."""

    @staticmethod
    def forward(ctx: Any, b: mg.Tensor, matrix: sparse.csc_array) -> Any:
        ctx.matrix = matrix
        return spsolve(matrix, b.numpy())

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> tuple[Any, None]:
        return spsolve(ctx.matrix.T.tocsc(), grad.numpy()), None


def laplacian(size: int, shift: float) -> sparse.csc_array:
    """A grid of ``size`` x ``size`` points, each joined to its neighbours."""
    eye = sparse.eye_array(size)
    line = (2.0 + shift) * eye - sparse.eye_array(size, k=1) - sparse.eye_array(size, k=-1)
    return (sparse.kron(line, eye) + sparse.kron(eye, line)).tocsc()


mg.manual_seed(0)
experts = [laplacian(SIZE // 4, 0.1 * k) for k in range(1, 9)]
heat = mg.rand((SIZE // 4) ** 2, dtype=mg.float64, requires_grad=True)
gate = mg.zeros(len(experts), dtype=mg.float64, requires_grad=True)
optimizer = mg.optim.Adam([heat, gate], lr=0.05)

with mg.Engine(mode="process", cpu_workers=2) as engine:
    for step in range(3):
        weights = gate.softmax(0)
        solutions = mg.stack([Solve.apply(heat, matrix) for matrix in experts])
        loss = (weights @ solutions - 1.0).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}  loss {loss.item():.4f}")
    print("tasks run by:", ", ".join(engine.statistics().tasks))
