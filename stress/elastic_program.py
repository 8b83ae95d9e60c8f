"""One rank of ``scripts/stress elastic``: trains elastically, and prints what comes of it.

Before the last step rank 0 waits for the end of its standard input, and the others for rank 0.
"""

from __future__ import annotations

import hashlib
import random
import sys

import numpy as np

import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad import nn
from mpgrad.data import DataLoader, TensorDataset
from mpgrad.distributed import elastic
from mpgrad.nn.parallel import DistributedDataParallel

BATCH, BATCHES = 8, 16


def main() -> None:
    """Train as many steps, on data of the seed."""
    seed, steps = int(sys.argv[1]), int(sys.argv[2])
    mg.set_engine(mg.Engine(random.Random(seed).choice(["local", "process"]), cpu_workers=1))
    dist.init_process_group()
    mg.manual_seed(seed)
    network = nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Dropout(0.3), nn.Linear(32, 4)
    )
    optimizer = mg.optim.Adam(network.parameters(), lr=0.01)
    numbers = np.random.default_rng((seed, dist.get_rank()))
    x = numbers.standard_normal((BATCH * BATCHES, 16)).astype(np.float32)
    loader = DataLoader(TensorDataset(mg.from_numpy(x)), batch_size=BATCH, shuffle=True)

    @elastic.run
    def train(state: elastic.State) -> None:
        model = DistributedDataParallel(state.model, bucket_cap_mb=0.001)
        while state.step < steps:
            for (batch,) in state.rest_of(loader, state.step % BATCHES):
                if state.step == steps - 1 and dist.get_rank() == 0:
                    sys.stdin.read()
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
                state.step += 1
                state.commit()
                if state.step == steps:
                    break

    train(elastic.State(model=network, optimizer=optimizer, step=0))
    tensors = (*network.parameters(), *network.buffers())
    bits = b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)
    print("ended", hashlib.sha256(bits).hexdigest(), flush=True)


if __name__ == "__main__":
    main()
