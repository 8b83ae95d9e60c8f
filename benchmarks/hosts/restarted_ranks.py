"""Ranks that train in ``elastic.run``; each says when it has committed its first step since a
death: ``committed PID SECONDS``."""

from __future__ import annotations

import os
import time

import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad import nn
from mpgrad.distributed import elastic
from mpgrad.nn.parallel import DistributedDataParallel

INPUTS, HIDDEN, OUTPUTS, BATCH = 64, 256, 10, 32


@elastic.run
def train(state: elastic.State) -> None:
    """Until the program is ended."""
    model = DistributedDataParallel(state.model)
    x = mg.randn(BATCH, INPUTS)
    is_first = True
    while True:
        state.optimizer.zero_grad()
        model(x).square().mean().backward()
        state.optimizer.step()
        state.step += 1
        state.commit()
        if is_first:
            print("committed", os.getpid(), time.monotonic(), flush=True)
            is_first = False


def main() -> None:
    """Train."""
    mg.set_engine(mg.Engine("local"))
    dist.init_process_group()
    mg.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUTPUTS))
    optimizer = mg.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    train(elastic.State(model=model, optimizer=optimizer, step=0))


if __name__ == "__main__":
    main()
