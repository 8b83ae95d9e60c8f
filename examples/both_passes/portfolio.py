"""A layer that solves a quadratic program: portfolios of funds, trained through their solver.

python examples/both_passes/portfolio.py [assets]
"""

import sys
import time

import numpy as np

import mpgrad as mg
from mpgrad import nn

ASSETS = int(sys.argv[1]) if len(sys.argv) > 1 else 40
FUNDS, ITERATIONS = 12, 300


def nearest_in_simplex(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The point of the simplex that is nearest to ``v``, and which weights are positive."""
    ordered = np.sort(v)[::-1]
    levels = (np.cumsum(ordered) - 1) / np.arange(1, len(v) + 1)
    level = levels[ordered > levels][-1]
    return np.maximum(v - level, 0), v > level


class BestWeights(mg.Function):
    """min w'Qw/2 - r'w, w >= 0, sum(w) = 1, by projected gradients; backward by its KKT system."""

    @staticmethod
    def forward(ctx, returns, risk):
        r, q = returns.numpy(), risk.numpy()
        rate = 1 / np.linalg.norm(q, 2)
        w = np.full(len(r), 1 / len(r))
        for _ in range(ITERATIONS):
            w, active = nearest_in_simplex(w - rate * (q @ w - r))
        ctx.w, ctx.active = w, active
        ctx.save_for_backward(risk)
        return w.copy()

    @staticmethod
    def backward(ctx, grad):
        (risk,) = ctx.saved_tensors
        free = np.flatnonzero(ctx.active)
        n = len(free)
        kkt = np.ones((n + 1, n + 1))
        kkt[:n, :n] = risk.numpy()[np.ix_(free, free)]
        kkt[n, n] = 0
        d = np.zeros(len(ctx.w))
        d[free] = np.linalg.solve(kkt, np.append(grad.numpy()[free], 0))[:n]
        return d, -np.outer(d, ctx.w)


class Fund(nn.Module):
    """Predicts returns from features, and invests by them."""

    def __init__(self):
        super().__init__()
        self.predict = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, features, risk, happened):
        weights = BestWeights.apply(self.predict(features).squeeze(-1).double(), risk)
        return -(weights * happened).sum() + 0.1 * weights @ risk @ weights


mg.manual_seed(0)
rng = np.random.default_rng(0)
features = [mg.tensor(rng.standard_normal((ASSETS, 6)), dtype=mg.float32) for _ in range(FUNDS)]
factors = [rng.standard_normal((ASSETS, ASSETS)) / np.sqrt(ASSETS) for _ in range(FUNDS)]
risks = [mg.tensor(f @ f.T + 0.1 * np.eye(ASSETS)) for f in factors]
happened = [mg.tensor(rng.standard_normal(ASSETS)) for _ in range(FUNDS)]

fund = Fund()
optimizer = mg.optim.SGD(fund.parameters(), lr=0.1)


def train():
    loss = mg.stack(mg.parallel_map(fund, features, risks, happened)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


for step in range(3):
    print(f"step {step}  loss {train():.12g}")

for mode in ("local", "process"):
    with mg.Engine(mode):
        times = []
        for _ in range(3):
            started = time.perf_counter()
            train()
            times.append(time.perf_counter() - started)
    print(f"a step in {mode}: {1e3 * min(times):.0f} ms")
