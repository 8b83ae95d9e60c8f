"""Hamiltonian Monte Carlo: each chain differentiates its own log-density, many times.

python examples/both_passes/hmc.py [samples of a chain]
"""

import sys
import time
from dataclasses import dataclass

import numpy as np

import mpgrad as mg

SAMPLES = int(sys.argv[1]) if len(sys.argv) > 1 else 100
CHAINS = 4

data_rng = np.random.default_rng(1)
X = mg.tensor(data_rng.standard_normal((200, 3)))
Y = mg.tensor((X.numpy() @ [1.0, -2.0, 0.5] + data_rng.standard_normal(200) > 0).astype(float))


@dataclass
class Chain:
    samples: np.ndarray
    accepted: int


def log_density(beta):
    """A logistic regression with a normal prior."""
    logits = X @ beta
    return (Y * logits - mg.nn.functional.softplus(logits)).sum() - 0.5 * beta.square().sum()


def slope(beta):
    beta = beta.detach().requires_grad_()
    value = log_density(beta)
    value.backward()
    return value.item(), beta.grad


def run_chain(rng, step=0.1, leaps=8):
    beta = mg.tensor(rng.standard_normal(3))
    value, gradient = slope(beta)
    samples, accepted = [], 0
    for _ in range(SAMPLES):
        momentum = mg.tensor(rng.standard_normal(3))
        start = value - 0.5 * momentum.square().sum().item()
        new, new_value, new_gradient = beta, value, gradient
        for _ in range(leaps):
            momentum = momentum + 0.5 * step * new_gradient
            new = new + step * momentum
            new_value, new_gradient = slope(new)
            momentum = momentum + 0.5 * step * new_gradient
        end = new_value - 0.5 * momentum.square().sum().item()
        if np.log(rng.random()) < end - start:
            beta, value, gradient = new, new_value, new_gradient
            accepted += 1
        samples.append(beta.numpy().copy())
    return Chain(np.array(samples), accepted)


def run_chains():
    return mg.parallel_map(run_chain, np.random.default_rng(0).spawn(CHAINS))


chains = run_chains()
for number, chain in enumerate(chains):
    print(f"chain {number}  accepted {chain.accepted}  mean {chain.samples.mean(0).round(10)}")
print("type of a chain:", type(chains[0]).__name__, isinstance(chains[0], Chain))

for mode in ("local", "process"):
    with mg.Engine(mode):
        times = []
        for _ in range(3):
            started = time.perf_counter()
            run_chains()
            times.append(time.perf_counter() - started)
    print(f"four chains in {mode}: {1e3 * min(times):.0f} ms")
