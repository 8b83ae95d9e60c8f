"""A bank of Kalman filters: the noise of many sensors by maximum likelihood.

Each filter is a loop over time of small operators, forward and backward. The sum over all sensors
is made in the workers.

python examples/both_passes/kalman_bank.py [steps of time]
"""

import sys

import numpy as np

import mpgrad as mg

TIMES = int(sys.argv[1]) if len(sys.argv) > 1 else 60
SENSORS = 12

MOVE = mg.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=mg.float64)
EYE = mg.eye(2, dtype=mg.float64)


def negative_log_likelihood(seen, log_process, log_sensor):
    """Of what one sensor has seen: positions of something that moves evenly, but for noise."""
    q = log_process.exp() * EYE
    r = log_sensor.exp()
    state, spread = mg.zeros(2, dtype=mg.float64), 10.0 * EYE
    total = 0.0
    for y in seen:
        state = MOVE @ state
        spread = MOVE @ spread @ MOVE.T + q
        surprise = y - state[0]
        variance = spread[0, 0] + r
        gain = spread[:, 0] / variance
        state = state + gain * surprise
        spread = spread - mg.outer(gain, spread[0])
        total = total + 0.5 * (surprise**2 / variance + variance.log())
    return total


rng = np.random.default_rng(0)
speeds = np.cumsum(0.1 * rng.standard_normal((SENSORS, TIMES)), axis=1)
observed = np.cumsum(speeds, axis=1) + 0.5 * rng.standard_normal((SENSORS, TIMES))

log_process = mg.tensor(0.0, dtype=mg.float64, requires_grad=True)
log_sensor = mg.tensor(0.0, dtype=mg.float64, requires_grad=True)
optimizer = mg.optim.Adam([log_process, log_sensor], lr=0.3)
for step in range(3):
    optimizer.zero_grad()
    loss = mg.parallel_map(
        negative_log_likelihood, observed, shared=(log_process, log_sensor), out="sum"
    )
    loss.backward()
    optimizer.step()
    print(f"step {step}  {loss.item():.10g}  slopes {log_process.grad:.8g} {log_sensor.grad:.8g}")
