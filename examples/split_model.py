"""Train a network whose first half lives on one host and whose second half on another.

pip install "mpgrad[data]"
mpgrad run --nproc-per-node 2 examples/split_model.py [epochs]

With OMP_NUM_THREADS=1 and --nproc-per-node 1 both halves live in one process: the parameters end
with the same bits.
"""

import hashlib
import os
import sys
from itertools import pairwise

import numpy as np
from sklearn.datasets import load_digits

import mpgrad as mg
import mpgrad.distributed.autograd as dist_autograd
import mpgrad.distributed.rpc as rpc
from mpgrad import nn
from mpgrad.distributed.optim import DistributedOptimizer
from mpgrad.distributed.rpc import RRef

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
BATCH = 60


class Half:
    """Some layers, and the host that they live on."""

    def __init__(self, seed: int, *sizes: int) -> None:
        mg.manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.net = nn.Sequential(*layers[:-1])

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        return self.net(x)

    def parameters(self) -> list[RRef]:
        return [RRef(parameter) for parameter in self.net.parameters()]

    def bits(self) -> bytes:
        return b"".join(parameter.detach().numpy().tobytes() for parameter in self.net.parameters())


rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"host{rank}")

if rank == 0:
    digits = load_digits()
    images = mg.tensor((digits.images / 16.0).astype(np.float32).reshape(-1, 64))
    labels = mg.tensor(digits.target)

    # One after the other: calls run in threads, and in one process these draw from one generator.
    first = rpc.remote("host0", Half, (0, 64, 100, 100))
    parameters = first.rpc_sync().parameters()
    second = rpc.remote(f"host{ranks - 1}", Half, (1, 100, 50, 10))
    parameters += second.rpc_sync().parameters()
    optimizer = DistributedOptimizer(mg.optim.SGD, parameters, lr=0.1, momentum=0.9)

    for epoch in range(EPOCHS):
        total = 0.0
        for start in range(0, 1500, BATCH):
            batch, wanted = images[start : start + BATCH], labels[start : start + BATCH]
            with dist_autograd.context() as context_id:  # what crosses hosts in it is one graph
                hidden = nn.functional.relu(first.rpc_sync().forward(batch))
                loss = nn.functional.cross_entropy(second.rpc_sync().forward(hidden), wanted)
                dist_autograd.backward(context_id, [loss])
                optimizer.step(context_id)  # each host steps the parameters that it owns
            total += loss.item()
        print(f"epoch {epoch + 1}  loss {total * BATCH / 1500:.4f}")

    with mg.no_grad():
        scores = second.rpc_sync().forward(
            nn.functional.relu(first.rpc_sync().forward(images[1500:]))
        )
    print(f"accuracy {(scores.argmax(1) == labels[1500:]).float().mean():.1%}")
    bits = first.rpc_sync().bits() + second.rpc_sync().bits()
    print("parameters", hashlib.sha256(bits).hexdigest()[:16])
    del first, second, parameters, optimizer
rpc.shutdown()
