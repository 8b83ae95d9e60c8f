"""MAML: the inner loop of each task, differentiated through its steps."""

import sys

import torch
from torch.func import functional_call

import mpgrad.torch as mt

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 16
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(1, 40), torch.nn.ReLU(), torch.nn.Linear(40, 1))


def task_loss(amplitude, phase, net):
    x = torch.linspace(-5, 5, 20).unsqueeze(1)
    y = amplitude * torch.sin(x + phase)
    fast = dict(net.named_parameters())
    for _ in range(STEPS):
        loss = (functional_call(net, fast, (x[::2],)) - y[::2]).square().mean()
        grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        fast = {name: p - 0.01 * g for (name, p), g in zip(fast.items(), grads, strict=True)}
    return (functional_call(net, fast, (x[1::2],)) - y[1::2]).square().mean()


amplitudes, phases = list(torch.rand(COUNT) * 5), list(torch.rand(COUNT) * 3)
loss = torch.stack(mt.parallel_map(task_loss, amplitudes, phases, shared=(net,))).mean()
loss.backward()
print(f"loss {loss.item():.6f}, gradient {net[0].weight.grad.abs().sum().item():.5f}")
