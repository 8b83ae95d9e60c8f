"""Calibrate sixteen simulators at once: one parameter each, and one that they share.

Each simulator is a spring with friction, integrated in small steps by a Python loop. Its derivative
is a loop, too: the sensitivities are integrated beside the state. The sixteen backwards do not need
each other's results, so they run side by side.

python examples/simulators.py [steps of a simulation]
"""

import sys

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
        ctx.save_for_backward(stiffness, friction)
        (x, *_), (v, *_) = state_at_end(stiffness.item(), friction.item())
        return mg.tensor(x), mg.tensor(v)

    @staticmethod
    def backward(ctx, grad_x, grad_v):
        stiffness, friction = ctx.saved_tensors
        (_, x_k, x_c), (_, v_k, v_c) = state_at_end(stiffness.item(), friction.item())
        return grad_x * x_k + grad_v * v_k, grad_x * x_c + grad_v * v_c


truth = [1.0 + 0.1 * k for k in range(SPRINGS)]
seen = [mg.stack(Spring.apply(mg.tensor(k), mg.tensor(0.3))) for k in truth]

stiffness = [mg.tensor(2.0, requires_grad=True) for _ in truth]
friction = mg.tensor(0.1, requires_grad=True)
optimizer = mg.optim.LBFGS([*stiffness, friction], max_iter=20, line_search_fn="strong_wolfe")


def closure():
    """The squared differences to what was seen, and their gradients."""
    optimizer.zero_grad()
    found = [mg.stack(Spring.apply(one, friction)) for one in stiffness]
    loss = mg.stack([(f - s).square().sum() for f, s in zip(found, seen, strict=True)]).sum()
    loss.backward()
    return loss


with mg.Engine(mode="process") as engine:
    before = optimizer.step(closure).item()
    print(f"loss {before:.3f} -> {closure().item():.1e}")
    print(f"friction {friction.item():.3f}, of the last spring {stiffness[-1].item():.3f}")
    print("tasks run by:", ", ".join(engine.statistics().tasks))
