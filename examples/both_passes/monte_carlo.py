"""Monte Carlo: the price of an Asian option and its Greeks, by paths that workers draw.

Random numbers of a call come from mpgrad's seed and the number of the item: they are the same for
any number of workers.

python examples/both_passes/monte_carlo.py [paths of a batch]
"""

import sys

import mpgrad as mg

PATHS = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000
BATCHES, DAYS = 16, 100


def payoff(batch, spot, volatility, rate):
    """The mean payoff of one batch of paths."""
    dt = 1.0 / DAYS
    log_price = spot.log().expand(PATHS)
    total = mg.zeros(PATHS, dtype=mg.float64)
    for _ in range(DAYS):
        shock = mg.randn(PATHS, dtype=mg.float64)
        log_price = log_price + (rate - 0.5 * volatility**2) * dt + volatility * dt**0.5 * shock
        total = total + log_price.exp()
    return (mg.relu(total / DAYS - 100.0) * mg.exp(-rate)).mean()


mg.manual_seed(0)
market = {
    "spot": mg.tensor(100.0, dtype=mg.float64, requires_grad=True),
    "volatility": mg.tensor(0.2, dtype=mg.float64, requires_grad=True),
    "rate": mg.tensor(0.03, dtype=mg.float64, requires_grad=True),
}
price = mg.parallel_map(payoff, range(BATCHES), shared=market, out="sum") / BATCHES
price.backward()
print(f"price {price.item():.12g}")
for greek, name in (("delta", "spot"), ("vega", "volatility"), ("rho", "rate")):
    print(f"{greek} {market[name].grad.item():.12g}")
