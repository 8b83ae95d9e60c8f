"""Train on handwritten digits in several processes, and go on when one of them dies.

pip install "mpgrad[data]"
mpgrad run --nproc-per-node 4 --max-restarts 3 examples/elastic_digits.py [epochs] [rank to kill]
"""

import hashlib
import os
import signal
import sys

import numpy as np
from sklearn.datasets import load_digits

import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad import nn
from mpgrad.data import DataLoader, DistributedSampler, TensorDataset
from mpgrad.distributed import elastic
from mpgrad.nn.parallel import DistributedDataParallel

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
VICTIM = int(sys.argv[2]) if len(sys.argv) > 2 else None
BATCH = 64  # of all ranks together

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
is_first_start = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

digits = load_digits()
images = mg.tensor((digits.images / 16.0).astype(np.float32).reshape(-1, 64))
train_set = TensorDataset(images[:1500], mg.tensor(digits.target[:1500]))
sampler = DistributedSampler(train_set)
loader = DataLoader(train_set, batch_size=BATCH // ranks, sampler=sampler)

mg.manual_seed(0)
network = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Dropout(0.1), nn.Linear(100, 10))
optimizer = mg.optim.SGD(network.parameters(), lr=0.2, momentum=0.9)


@elastic.run
def train(state):
    """Begin where the state is: at the start, or where the ranks committed last."""
    model = DistributedDataParallel(state.model)  # belongs to the ranks that are there now
    while state.epoch < EPOCHS:
        sampler.set_epoch(state.epoch)
        for batch, labels in state.rest_of(loader, state.batch):
            state.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), labels)
            if rank == VICTIM and is_first_start and state.batch == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
            state.optimizer.step()
            state.batch += 1
            state.commit()
        if rank == 0:
            print(f"epoch {state.epoch + 1}  loss {loss.item():.4f}")
        state.epoch, state.batch = state.epoch + 1, 0
        state.commit()


train(elastic.State(model=network, optimizer=optimizer, epoch=0, batch=0))
bits = b"".join(parameter.detach().numpy().tobytes() for parameter in network.parameters())
print("parameters", hashlib.sha256(bits).hexdigest()[:16])  # the same, whoever has died
dist.destroy_process_group()
