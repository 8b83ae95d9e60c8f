"""A neural differential equation: a small network is the slope; trajectories run side by side.

python examples/both_passes/neural_ode.py [steps of time]
"""

import sys

import mpgrad as mg
from mpgrad import nn

TIMES = int(sys.argv[1]) if len(sys.argv) > 1 else 80
TRAJECTORIES = 8


class Field(nn.Module):
    """The slope at a point."""

    def __init__(self, width=32):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, width), nn.Linear(width, 2)])

    def forward(self, t, y):
        first, second = self.layers
        return second(mg.tanh(first(y**3)))


def runge_kutta(field, y, times, h):
    """The points that are passed from ``y`` on."""
    points = [y]
    for k in range(times):
        t = k * h
        k1 = field(t, y)
        k2 = field(t + h / 2, y + h / 2 * k1)
        k3 = field(t + h / 2, y + h / 2 * k2)
        k4 = field(t + h, y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        points.append(y)
    return mg.stack(points)


def spiral(t, y):
    return (y**3) @ mg.tensor([[-0.1, 2.0], [-2.0, -0.1]])


mg.manual_seed(0)
starts = 2 * mg.rand(TRAJECTORIES, 2) - 1
truths = [runge_kutta(spiral, start, TIMES, 0.05) for start in starts]
field = Field()
optimizer = mg.optim.RMSprop(field.parameters(), lr=0.01)

for step in range(3):
    found = mg.parallel_map(lambda y: runge_kutta(field, y, TIMES, 0.05), starts)
    loss = mg.stack([(a - b).abs().mean() for a, b in zip(found, truths, strict=True)]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}  loss {loss.item():.7g}")
