"""A derivative written by hand, in NumPy; and where it runs.

python examples/custom_function.py [size]
"""

import sys

import numpy as np

import mpgrad as mg

SIZE = int(sys.argv[1]) if len(sys.argv) > 1 else 200


class LogDeterminant(mg.Function):
    """log |det A|; its derivative is the transposed inverse of A."""

    @staticmethod
    def forward(ctx, matrix):
        ctx.save_for_backward(matrix)
        # A Function may return a NumPy array where a Tensor is expected.
        return np.linalg.slogdet(matrix.numpy())[1]

    @staticmethod
    def backward(ctx, grad):
        (matrix,) = ctx.saved_tensors
        return grad * np.linalg.inv(matrix.numpy()).T


calls = []


class Counted(mg.Function):
    """The identity; counts its backwards in a list, so that it has to run in this process."""

    run_on = "client"

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        calls.append(grad.shape)
        return grad


mg.manual_seed(0)
matrices = [mg.randn(SIZE, SIZE, dtype=mg.float64, requires_grad=True) for _ in range(4)]

with mg.Engine(mode="process") as engine:
    total = mg.stack([LogDeterminant.apply(Counted.apply(m)) for m in matrices]).sum()
    # Where every node will run, and why.
    print(engine.explain(total))
    total.backward()

print(f"\nCounted.backward ran {len(calls)} times in this process")

# Compare one entry of the gradient with a central difference.
first, step = matrices[0].detach().numpy(), 1e-6
moved = np.zeros_like(first)
moved[0, 1] = step
difference = np.linalg.slogdet(first + moved)[1] - np.linalg.slogdet(first - moved)[1]
print(f"gradient {matrices[0].grad[0, 1].item():.6f}, by difference {difference / (2 * step):.6f}")
