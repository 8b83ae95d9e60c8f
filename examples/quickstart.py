"""Sixteen simulations side by side: their backward is a Python loop, and uses every core.

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
        ctx.save_for_backward(rate)
        ctx.steps = steps
        size, speed = 0.01, 10.0 / steps * rate.item()
        for _ in range(steps):
            size += speed * size * (1.0 - size)
        return mg.tensor(size)

    @staticmethod
    def backward(ctx, grad):
        (rate,) = ctx.saved_tensors
        size, slope, dt = 0.01, 0.0, 10.0 / ctx.steps
        for _ in range(ctx.steps):
            slope += dt * (size * (1.0 - size) + rate.item() * (1.0 - 2.0 * size) * slope)
            size += dt * rate.item() * size * (1.0 - size)
        return grad * slope, None


rates = [mg.tensor(0.25 + k / 16, requires_grad=True) for k in range(16)]

for mode in ("local", "process"):
    with mg.Engine(mode=mode):
        loss = mg.stack([Growth.apply(rate, STEPS) for rate in rates]).sum()
        start = time.perf_counter()
        loss.backward()
        print(f"{mode:<7}  {time.perf_counter() - start:.2f} s")

# Both backwards were added to .grad, as in PyTorch.
print("gradients:", [round(rate.grad.item() / 2, 3) for rate in rates])
