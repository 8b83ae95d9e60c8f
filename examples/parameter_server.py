"""Train with a parameter server: it owns the parameters, the other hosts compute on their parts.

pip install "mpgrad[data]"
mpgrad run --nproc-per-node 4 examples/parameter_server.py [steps]

With OMP_NUM_THREADS=1 and --nproc-per-node 1 one process does it all: the parameters end with the
same bits.
"""

import hashlib
import os
import sys

import numpy as np
from sklearn.datasets import load_digits

import mpgrad as mg
import mpgrad.distributed.autograd as dist_autograd
import mpgrad.distributed.rpc as rpc
from mpgrad import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
TRAINERS, BATCH = 3, 100  # of each trainer, of all together about three times that

digits = load_digits()
IMAGES = mg.tensor((digits.images / 16.0).astype(np.float32).reshape(-1, 64))
LABELS = mg.tensor(digits.target)


def loss_of_part(weights: list[mg.Tensor], trainer: int, step: int) -> mg.Tensor:
    """A trainer's loss on its part of the step's images, with the server's parameters."""
    chosen = np.random.default_rng((trainer, step)).integers(0, 1500, BATCH)
    hidden = nn.functional.relu(nn.functional.linear(IMAGES[chosen], weights[0], weights[1]))
    scores = nn.functional.linear(hidden, weights[2], weights[3])
    return nn.functional.cross_entropy(scores, LABELS[chosen])


rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"host{rank}")

if rank == 0:
    mg.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    weights = list(model.parameters())
    optimizer = mg.optim.SGD(weights, lr=0.3)
    for step in range(STEPS):
        with dist_autograd.context() as context_id:
            losses = [
                rpc.rpc_async((1 + trainer) % ranks, loss_of_part, (weights, trainer, step))
                for trainer in range(TRAINERS)
            ]
            loss = sum(future.wait() for future in losses) / TRAINERS
            dist_autograd.backward(context_id, [loss])
            gradients = dist_autograd.get_gradients(context_id)
        for weight in weights:
            weight.grad = gradients[weight]
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}  loss {loss.item():.4f}")
    with mg.no_grad():
        right = model(IMAGES[1500:]).argmax(1) == LABELS[1500:]
    print(f"accuracy {right.float().mean():.1%}")
    bits = b"".join(weight.detach().numpy().tobytes() for weight in weights)
    print("parameters", hashlib.sha256(bits).hexdigest()[:16])
rpc.shutdown()
