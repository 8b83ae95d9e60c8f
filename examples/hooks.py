"""Hooks see and change gradients; they always run in your process, on the calling thread.

python examples/hooks.py [batch size]
"""

import sys

import mpgrad as mg
from mpgrad import nn

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 64

mg.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
inputs, targets = mg.randn(BATCH, 32), mg.randn(BATCH, 1)
seen = []


def report(grad):
    """Remember how large the gradient of the hidden layer is."""
    seen.append(f"hidden {tuple(grad.shape)}")


def clip(grad):
    """What a tensor hook returns takes the place of the gradient."""
    return grad.clamp(-0.01, 0.01)


def update_at_once(parameter):
    """Gradient descent inside backward: afterwards the gradient is not needed any more."""
    with mg.no_grad():
        parameter -= 0.1 * parameter.grad
    parameter.grad = None
    seen.append(f"updated {tuple(parameter.shape)}")


with mg.Engine(mode="process"):
    hidden = model[1](model[0](inputs))
    hidden.register_hook(report)
    model[2].weight.register_hook(clip)
    loss = nn.functional.mse_loss(model[2](hidden), targets)
    loss.backward()
    print("largest clipped entry:", round(model[2].weight.grad.abs().max().item(), 4))

    model.zero_grad()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update_at_once)
    before = loss.item()
    for _ in range(20):
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()

print("hooks that ran first:", seen[:5])
print(f"loss {before:.4f} -> {loss.item():.4f} without an optimizer")
