"""Soft dynamic time warping as a loss, in a Module, with a DataLoader.

M. Cuturi, M. Blondel, "Soft-DTW: a differentiable loss function for time-series" (2017).

python examples/both_passes/soft_dtw.py [length of a series]
"""

import math
import sys

import numpy as np

import mpgrad as mg
from mpgrad import nn
from mpgrad.utils.data import DataLoader, TensorDataset

LENGTH = int(sys.argv[1]) if len(sys.argv) > 1 else 50


def soft_min(values, gamma):
    low = min(values)
    if low == math.inf:
        return low
    return low - gamma * math.log(sum(math.exp((low - v) / gamma) for v in values))


class SoftDTWFunction(mg.Function):
    """The soft cost of the best way through a table of distances."""

    @staticmethod
    def forward(ctx, distances, gamma):
        d = distances.tolist()
        n, m = len(d), len(d[0])
        r = [[math.inf] * (m + 2) for _ in range(n + 2)]
        r[0][0] = 0.0
        for i in range(1, n + 1):
            for j in range(1, m + 1):
                r[i][j] = d[i - 1][j - 1] + soft_min(
                    (r[i - 1][j - 1], r[i - 1][j], r[i][j - 1]), gamma
                )
        ctx.d, ctx.r, ctx.gamma = d, r, gamma
        return distances.new_tensor(r[n][m])

    @staticmethod
    def backward(ctx, grad):
        d, r, gamma = ctx.d, ctx.r, ctx.gamma
        n, m = len(d), len(d[0])
        e = [[0.0] * (m + 2) for _ in range(n + 2)]
        e[n][m] = 1.0
        for i in range(n, 0, -1):
            for j in range(m, 0, -1):
                for a, b in ((i + 1, j), (i, j + 1), (i + 1, j + 1)):
                    if a <= n and b <= m:
                        e[i][j] += e[a][b] * math.exp((r[a][b] - r[i][j] - d[a - 1][b - 1]) / gamma)
        return grad * grad.new_tensor([row[1:-1] for row in e[1:-1]]), None


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
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y).mean()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch}  loss {loss.item():.6g}")
