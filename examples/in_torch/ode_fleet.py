"""N different ODEs, each with its own stiffness and length, solved by torchdiffeq (pip install
torchdiffeq): the loop over trajectories is one line, ``mt.parallel_map``."""

import sys

import torch
from torchdiffeq import odeint

import mpgrad.torch as mt

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 16
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
field = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
starts = list(torch.randn(COUNT, 2))
ends = [1.0 + 0.2 * k for k in range(COUNT)]


def misfit(start, end, field):
    path = odeint(lambda t, y: field(y), start, torch.linspace(0.0, end, 20), rtol=1e-6)
    return path[-1].square().sum()


losses = mt.parallel_map(misfit, starts, ends, shared=(field,))
loss = torch.stack(losses).mean()
loss.backward()
print(f"loss {loss.item():.12f}, gradient {field[0].weight.grad.abs().sum().item():.12f}")
