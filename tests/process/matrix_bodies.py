"""31 ordinary bodies of a backward that reads a global matrix ``M``; ``g`` is the gradient."""

from __future__ import annotations

#: Each sets ``out``, an array of the shape of ``g``.
BODIES = (
    "out = M @ g",
    "out = g @ M",
    "out = np.dot(M, g)",
    "out = M.dot(g)",
    "out = M.T @ g",
    "out = np.matmul(M, g)",
    "out = np.einsum('ij,j->i', M, g)",
    "out = (M * g).sum(1)",
    "out = np.linalg.solve(M, g)",
    "out = scipy.linalg.solve(M, g)",
    "out = scipy.linalg.solve(M, g, assume_a='pos')",
    "out = scipy.linalg.lu_solve(scipy.linalg.lu_factor(M), g)",
    "out = scipy.linalg.cho_solve(scipy.linalg.cho_factor(M), g)",
    "out = np.linalg.inv(M) @ g",
    "out = scipy.linalg.expm(M) @ g",
    "out = np.zeros(3)\nfor i in range(3):\n    for j in range(3):\n"
    "        out[i] += M[i, j] * g[j]",
    "out = np.array([sum(a * b for a, b in zip(row, g)) for row in M])",
    "out = np.empty(3)\nnp.matmul(M, g, out=out)",
    "m = M\nout = m @ g",
    "m = M.copy()\nm[0] = 0.0\nout = m @ g",
    "m = M + 1.0\nm *= 2.0\nout = m @ g",
    "out = g.copy()\nout += M[0]\nout[1:] -= M[1, 1:]",
    "out = np.where(M[0] > 0, g, 0.0)",
    "rows = [row for row in M]\nrows.sort(key=lambda row: row[0])\nout = np.stack(rows) @ g",
    "w, v = np.linalg.eigh(M)\nout = v @ (w * (v.T @ g))",
    "n, m = M.shape\nout = M.reshape(n * m)[:n] * g",
    "out = helper(M, g)",
    "out = (lambda m: m @ g)(M)",
    "out = M[np.argsort(M[:, 0])] @ g",
    "with np.errstate(divide='ignore'):\n    out = np.log(np.abs(M)).max(1) * g",
    "out = mg.tensor(M).mv(mg.tensor(g).double()).numpy()",
)

SOURCE = """
import numpy as np
import scipy.linalg
import mpgrad as mg

M = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]])

def helper(m, g):
    total = np.zeros_like(g)
    for k in range(len(m)):
        total[k] = m[k] @ g
    return total

class F(mg.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, grad):
        g = grad.numpy()
        {body}
        return grad.new_tensor(out)

def loss(x):
    return (F.apply(x) + F.apply(x * 2)).sum()
"""
