"""Sixteen simulations side by side: each is a loop in Python, and together they use every core.

python examples/quickstart.py [steps]
"""

import sys
import time

import mpgrad as mg

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000


class Growth(mg.Function):
    """A population that grows towards 1 (logistic growth), simulated in small steps."""

    @staticmethod
    def forward(ctx, rate, steps):
        rate, dt = rate.item(), 10.0 / steps
        size, slope = 0.01, 0.0
        for _ in range(steps):
            slope += dt * (size * (1.0 - size) + rate * (1.0 - 2.0 * size) * slope)
            size += dt * rate * size * (1.0 - size)
        ctx.slope = slope  # found on the way, for backward
        return mg.tensor(size)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.slope, None


rates = [mg.tensor(0.25 + k / 16, requires_grad=True) for k in range(16)]

for mode in ("local", "process"):
    with mg.Engine(mode=mode):
        for _ in range(2):  # the first step also starts the workers
            start = time.perf_counter()
            sizes = Growth.map(rates, [STEPS] * 16)  # [Growth.apply(rate, STEPS) for rate in rates]
            mg.stack(sizes).sum().backward()
        print(f"{mode:<7}  {time.perf_counter() - start:.2f} s")

# All four steps have added to .grad, as in PyTorch.
print("gradients:", [round(rate.grad.item() / 4, 3) for rate in rates])
