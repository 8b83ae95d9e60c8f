"""Soft dynamic time warping as a loss, in a Module, with a DataLoader.

M. Cuturi, M. Blondel, "Soft-DTW: a differentiable loss function for time-series" (2017).

python examples/both_passes/soft_dtw.py [length of a series]
"""

import math
import sys
import time

import numpy as np

import mpgrad as mg
from mpgrad import nn
from mpgrad.utils.data import DataLoader, TensorDataset

LENGTH = int(sys.argv[1]) if len(sys.argv) > 1 else 50


def soft_min(values, gamma):
    """The soft minimum, and its derivatives by the values."""
    low = min(values)
    weights = [math.exp((low - v) / gamma) for v in values]
    total = sum(weights)
    return low - gamma * math.log(total), [weight / total for weight in weights]


class SoftDTWFunction(mg.Function):
    """The soft cost of the best way through a table of distances."""

    @staticmethod
    def forward(ctx, distances, gamma):
        d = distances.tolist()
        n, m = len(d), len(d[0])
        r = [[math.inf] * (m + 1) for _ in range(n + 1)]
        r[0][0] = 0.0
        ctx.weights = [[None] * m for _ in range(n)]
        for i in range(n):
            for j in range(m):
                before = r[i][j], r[i][j + 1], r[i + 1][j]
                low, ctx.weights[i][j] = soft_min(before, gamma)
                r[i + 1][j + 1] = d[i][j] + low
        return distances.new_tensor(r[n][m])

    @staticmethod
    def backward(ctx, grad):
        n, m = len(ctx.weights), len(ctx.weights[0])
        e = [[0.0] * (m + 1) for _ in range(n + 1)]
        e[n][m] = 1.0
        for i in reversed(range(n)):
            for j in reversed(range(m)):
                places = (i, j), (i, j + 1), (i + 1, j)
                for (a, b), weight in zip(places, ctx.weights[i][j], strict=True):
                    e[a][b] += e[i + 1][j + 1] * weight
        return grad * grad.new_tensor([row[1:] for row in e[1:]]), None


class SoftDTW(nn.Module):
    """The distance of each series of a batch from its target."""

    def __init__(self, gamma=0.1):
        super().__init__()
        self.gamma = gamma

    def one(self, x, y):
        distances = (x.unsqueeze(1) - y.unsqueeze(0)).square()
        return SoftDTWFunction.apply(distances, self.gamma)

    def forward(self, xs, ys):
        return mg.stack(mg.parallel_map(self.one, xs, ys))


mg.manual_seed(0)
times = np.linspace(0, 6, LENGTH)
starts = np.linspace(0, 3, 16)
series = mg.tensor(np.sin(times + starts[:, None]), dtype=mg.float32)
targets = mg.tensor(np.sin(1.3 * times + starts[:, None]), dtype=mg.float32)
order = mg.Generator().manual_seed(0)
loader = DataLoader(TensorDataset(series, targets), batch_size=8, shuffle=True, generator=order)

model = nn.Sequential(nn.Linear(LENGTH, 32), nn.ReLU(), nn.Linear(32, LENGTH))
criterion = SoftDTW()
optimizer = mg.optim.Adam(model.parameters(), lr=1e-3)


def train(x, y):
    optimizer.zero_grad()
    loss = criterion(model(x), y).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for epoch in range(2):
    for x, y in loader:
        print(f"epoch {epoch}  loss {train(x, y):.6g}")

for mode in ("local", "process"):
    with mg.Engine(mode):
        times = []
        for _ in range(3):
            started = time.perf_counter()
            train(series[:8], targets[:8])
            times.append(time.perf_counter() - started)
    print(f"a step in {mode}: {1e3 * min(times):.0f} ms")
