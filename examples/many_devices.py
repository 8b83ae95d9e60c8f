"""One backward on all devices of a host: a tower on each GPU, simulators on the CPU beside them.

Without a GPU the towers stand on the CPU: the program is the same.

mpgrad run --gpus all --pin cores examples/many_devices.py [towers]
"""

import sys

import mpgrad as mg
from mpgrad import nn

TOWERS = int(sys.argv[1]) if len(sys.argv) > 1 else 4


class Simulate(mg.Function):
    """A step that no GPU takes: a loop in Python."""

    @staticmethod
    def forward(ctx, x, steps):
        ctx.steps = steps
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        decay = 1.0
        for _ in range(ctx.steps):
            decay = decay * 0.99999 + 1e-6
        return grad * decay, None


engine = mg.current_engine()
gpus = sorted(set(engine.gpus))
places = [f"cuda:{number}" for number in gpus] or ["cpu"]

mg.manual_seed(0)
homes = [places[k % len(places)] for k in range(TOWERS)]
towers = [
    nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1)).to(home) for home in homes
]
parameters = [parameter for tower in towers for parameter in tower.parameters()]
optimizer = mg.optim.SGD(parameters, lr=0.01)
inputs = mg.randn(32, 64)

for step in range(3):
    outputs = []
    for tower, home in zip(towers, homes, strict=True):
        scores = tower(inputs.to(home)).to("cpu")
        outputs.append(Simulate.apply(scores, 20_000))
    loss = mg.stack(outputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}  loss {loss.item():.4f}")

print("towers on:", ", ".join(dict.fromkeys(homes)))
print("tasks run by:", ", ".join(sorted(engine.statistics().tasks)))
