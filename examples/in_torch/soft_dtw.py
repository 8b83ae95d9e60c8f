"""Soft-DTW in numba (pip install numba), an unchanged program but for one line: its custom Function
is differentiated in workers."""

import sys

import numba
import numpy as np
import torch

import mpgrad.torch as mt

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 16
LENGTH = int(sys.argv[2]) if len(sys.argv) > 2 else 200


@numba.njit
def forward(cost, gamma):
    n, m = cost.shape
    found = np.full((n + 2, m + 2), np.inf)
    found[0, 0] = 0.0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            a, b, c = found[i - 1, j - 1], found[i - 1, j], found[i, j - 1]
            low = min(a, b, c)
            total = (
                np.exp((low - a) / gamma) + np.exp((low - b) / gamma) + np.exp((low - c) / gamma)
            )
            found[i, j] = cost[i - 1, j - 1] + low - gamma * np.log(total)
    return found


@numba.njit
def backward(cost, found, gamma):
    n, m = cost.shape
    grid = np.zeros((n + 2, m + 2))
    grid[n, m] = 1.0
    for i in range(n, 0, -1):
        for j in range(m, 0, -1):
            if i == n and j == m:
                continue
            total = 0.0
            for k, m2 in ((i + 1, j), (i, j + 1), (i + 1, j + 1)):
                if k <= n and m2 <= m:
                    value = found[k, m2] - found[i, j] - cost[k - 1, m2 - 1]
                    total += grid[k, m2] * np.exp(value / gamma)
            grid[i, j] = total
    return grid[1:-1, 1:-1]


class SoftDTW(torch.autograd.Function):
    @staticmethod
    def forward(ctx, cost, gamma):
        found = forward(cost.numpy(), gamma)
        ctx.save_for_backward(cost)
        ctx.found, ctx.gamma = found, gamma
        return cost.new_tensor(found[-2, -2])

    @staticmethod
    def backward(ctx, grad):
        (cost,) = ctx.saved_tensors
        return grad * torch.as_tensor(backward(cost.numpy(), ctx.found, ctx.gamma)), None


mt.parallelize(SoftDTW)

torch.manual_seed(0)
template = torch.randn(LENGTH, 1, dtype=torch.float64, requires_grad=True)
loss = 0.0
for _ in range(COUNT):
    series = torch.randn(LENGTH, 1, dtype=torch.float64).cumsum(0)
    loss = loss + SoftDTW.apply((template - series.T).square(), 1.0)
loss.backward()
print(f"loss {loss.item():.12f}, gradient {template.grad.abs().sum().item():.12f}")
