"""A batch of quadratic programs of different sizes, solved by qpth (pip install qpth)."""

import sys

import torch
from qpth.qp import QPFunction

import mpgrad.torch as mt

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 16
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
expected = [torch.randn(10 + k % 5, requires_grad=True) for k in range(COUNT)]
risks = [torch.eye(len(one)) * 2 + 0.1 for one in expected]


def weights(returns, risk):
    n = len(returns)
    bounds, sums = torch.zeros(n), torch.ones(1)
    one = QPFunction(verbose=-1, check_Q_spd=False)(
        risk, -returns, -torch.eye(n), bounds, torch.ones(1, n), sums
    )
    return one[0]


chosen = mt.parallel_map(weights, expected, risks)
loss = sum((w * r).sum() for w, r in zip(chosen, expected, strict=True))
loss.backward()
gradient = sum(one.grad.abs().sum() for one in expected)
print(f"loss {loss.item():.12f}, gradient {gradient.item():.12f}")
