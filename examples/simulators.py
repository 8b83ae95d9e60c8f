"""Calibrate sixteen simulators at once: one parameter each, and one that they share.

Each simulator is a spring with friction, integrated in small steps by a Python loop; its
sensitivities are integrated beside the state. The sixteen springs do not need each other's results,
so they run side by side, and what forward has found stays in its worker for backward.

python examples/simulators.py [steps of a simulation]
"""

import sys
import time

import mpgrad as mg

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
DURATION = 3.0  # seconds that a simulation covers
SPRINGS = 16


def state_at_end(stiffness, friction):
    """Position and speed after ``DURATION``, each with its derivatives by both arguments."""
    dt = DURATION / STEPS
    x, v = 1.0, 0.0  # position, speed
    x_k, v_k, x_c, v_c = 0.0, 0.0, 0.0, 0.0  # their derivatives by stiffness and friction
    for _ in range(STEPS):
        a = -stiffness * x - friction * v
        a_k = -x - stiffness * x_k - friction * v_k
        a_c = -v - stiffness * x_c - friction * v_c
        v, v_k, v_c = v + dt * a, v_k + dt * a_k, v_c + dt * a_c
        x, x_k, x_c = x + dt * v, x_k + dt * v_k, x_c + dt * v_c
    return (x, x_k, x_c), (v, v_k, v_c)


class Spring(mg.Function):
    """Where a spring is after ``DURATION``, and how fast."""

    @staticmethod
    def forward(ctx, stiffness, friction):
        (x, *ctx.x_slopes), (v, *ctx.v_slopes) = state_at_end(stiffness.item(), friction.item())
        return mg.tensor(x), mg.tensor(v)

    @staticmethod
    def backward(ctx, grad_x, grad_v):
        slopes = zip(ctx.x_slopes, ctx.v_slopes, strict=True)
        return tuple(grad_x * x_slope + grad_v * v_slope for x_slope, v_slope in slopes)


truth = [mg.tensor(1.0 + 0.1 * k) for k in range(SPRINGS)]
seen = [mg.stack(end) for end in Spring.map(truth, [mg.tensor(0.3)] * SPRINGS)]

stiffness = [mg.tensor(2.0, requires_grad=True) for _ in truth]
friction = mg.tensor(0.1, requires_grad=True)
optimizer = mg.optim.LBFGS([*stiffness, friction], max_iter=20, line_search_fn="strong_wolfe")


def closure():
    """The squared differences to what was seen, and their gradients."""
    optimizer.zero_grad()
    found = [mg.stack(end) for end in Spring.map(stiffness, [friction] * SPRINGS)]
    loss = mg.stack([(f - s).square().sum() for f, s in zip(found, seen, strict=True)]).sum()
    loss.backward()
    return loss


def milliseconds():
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
    before = optimizer.step(closure).item()
    print(f"loss {before:.3f} -> {closure().item():.1e}")
    print(f"friction {friction.item():.3f}, of the last spring {stiffness[-1].item():.3f}")
    print("tasks run by:", ", ".join(engine.statistics().tasks))
