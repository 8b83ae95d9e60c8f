"""A black box with derivatives by finite differences: a simulator that knows nothing of tensors.

python examples/both_passes/black_box.py [steps of a flight]
"""

import math
import sys

import numpy as np

import mpgrad as mg

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000


def fly(angle, speed, drag):
    """How far a ball flies: plain Python, as if it came from somebody else."""
    x, y = 0.0, 0.0
    vx, vy = speed * math.cos(angle), speed * math.sin(angle)
    dt = 5.0 / STEPS
    for _ in range(STEPS):
        v = math.hypot(vx, vy)
        vx -= drag * v * vx * dt
        vy -= (9.81 + drag * v * vy) * dt
        x, y = x + vx * dt, y + vy * dt
        if y < 0:
            break
    return x - y * vx / vy if y < 0 else x


class Fly(mg.Function):
    """``fly`` with its derivatives: forward computes them on the way."""

    @staticmethod
    def forward(ctx, angle, speed, drag):
        at = np.array([angle.item(), speed.item(), drag.item()])
        h = 1e-6
        ctx.slopes = [(fly(*(at + h * e)) - fly(*(at - h * e))) / (2 * h) for e in np.eye(3)]
        return angle.new_tensor(fly(*at))

    @staticmethod
    def backward(ctx, grad):
        return tuple(grad * slope for slope in ctx.slopes)


targets = mg.linspace(5.0, 30.0, 16, dtype=mg.float64)
angles = mg.full((16,), 0.6, dtype=mg.float64, requires_grad=True)
speed = mg.tensor(15.0, dtype=mg.float64, requires_grad=True)
drag = mg.tensor(0.01, dtype=mg.float64)
optimizer = mg.optim.Adam([angles, speed], lr=0.05)
for step in range(3):
    ranges = mg.parallel_map(Fly.apply, angles, shared=(speed, drag))
    loss = (mg.stack(ranges) - targets).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}  loss {loss.item():.10g}  slope of speed {speed.grad.item():.8g}")
