"""Train a network in a pipeline of stages: each works on another part of the batch.

pip install "mpgrad[data]"
mpgrad run --nproc-per-node 3 examples/pipeline.py [epochs]

With OMP_NUM_THREADS=1 and --nproc-per-node 1 all stages live in one process: the parameters end
with the same bits.
"""

import hashlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from sklearn.datasets import load_digits

import mpgrad as mg
import mpgrad.distributed.autograd as dist_autograd
import mpgrad.distributed.rpc as rpc
from mpgrad import nn
from mpgrad.distributed.rpc import RRef

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
BATCH, PARTS = 60, 4
SIZES = [(64, 100), (100, 50), (50, 10)]  # of the stages


class Stage:
    """One layer, on the host that it lives on."""

    def __init__(self, number: int) -> None:
        mg.manual_seed(number)
        self.net = nn.Linear(*SIZES[number])
        self.optimizer = mg.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.kept: dict[int, dict[mg.Tensor, mg.Tensor]] = {}

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        return self.net(x)

    def keep(self, context_id: int, part: int) -> None:
        self.kept[part] = dist_autograd.get_gradients(context_id)

    def step(self) -> None:
        """Add the gradients of all parts, in the order of these."""
        for weight in self.net.parameters():
            weight.grad = sum(self.kept[part][weight] for part in range(PARTS))
        self.optimizer.step()

    def bits(self) -> bytes:
        return b"".join(weight.detach().numpy().tobytes() for weight in self.net.parameters())


def through(stages: list[RRef], x: mg.Tensor) -> mg.Tensor:
    for stage in stages[:-1]:
        x = nn.functional.relu(stage.rpc_sync().forward(x))
    return stages[-1].rpc_sync().forward(x)


def train_part(stages: list[RRef], part: int, x: mg.Tensor, wanted: mg.Tensor) -> float:
    """Forward and backward of one part of a batch, which is a graph of its own."""
    with dist_autograd.context() as context_id:
        loss = nn.functional.cross_entropy(through(stages, x), wanted, reduction="sum") / BATCH
        dist_autograd.backward(context_id, [loss])
        for stage in stages:
            stage.rpc_sync().keep(context_id, part)
        return loss.item()


rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"host{rank}")

if rank == 0:
    digits = load_digits()
    images = mg.tensor((digits.images / 16.0).astype(np.float32).reshape(-1, 64))
    labels = mg.tensor(digits.target)
    stages = []
    for number in range(len(SIZES)):
        stages.append(rpc.remote(f"host{number % ranks}", Stage, (number,)))
        stages[-1].rpc_sync().bits()  # it is there: these draw from one generator in one process

    size = BATCH // PARTS
    with ThreadPoolExecutor(PARTS) as threads:
        for epoch in range(EPOCHS):
            total = 0.0
            for start in range(0, 1500, BATCH):
                parts = [
                    threads.submit(
                        train_part, stages, part, images[at : at + size], labels[at : at + size]
                    )
                    for part, at in enumerate(range(start, start + BATCH, size))
                ]
                total += sum(part.result() for part in parts)
                for stage in stages:
                    stage.rpc_sync().step()
            print(f"epoch {epoch + 1}  loss {total * BATCH / 1500:.4f}")

    with mg.no_grad():
        scores = through(stages, images[1500:])
    print(f"accuracy {(scores.argmax(1) == labels[1500:]).float().mean():.1%}")
    bits = b"".join(stage.rpc_sync().bits() for stage in stages)
    print("parameters", hashlib.sha256(bits).hexdigest()[:16])
    del stages, stage
rpc.shutdown()
