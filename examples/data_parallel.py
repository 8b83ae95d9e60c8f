"""Train a network on handwritten digits in several processes, each of which sees its own part.

pip install "mpgrad[data]"
mpgrad run --nproc-per-node 4 examples/data_parallel.py [epochs]
"""

import hashlib
import sys

import numpy as np
from sklearn.datasets import load_digits

import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad import nn
from mpgrad.data import DataLoader, DistributedSampler, TensorDataset
from mpgrad.nn.parallel import DistributedDataParallel

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
BATCH = 64  # of all ranks together

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()

digits = load_digits()
images = mg.tensor((digits.images / 16.0).astype(np.float32).reshape(-1, 64))
train = TensorDataset(images[:1500], mg.tensor(digits.target[:1500]))
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=BATCH // ranks, sampler=sampler)

mg.manual_seed(0)
network = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
model = DistributedDataParallel(network)  # every rank gets the parameters of rank 0
optimizer = mg.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for batch, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), labels)
        loss.backward()  # while it runs, the gradients of all ranks are averaged
        optimizer.step()
    dist.all_reduce(total := loss.detach().clone(), dist.ReduceOp.AVG)
    if rank == 0:
        with mg.no_grad():
            right = model.module(images[1500:]).argmax(1) == mg.tensor(digits.target[1500:])
        print(f"epoch {epoch + 1}  loss {total.item():.4f}  accuracy {right.float().mean():.1%}")

bits = b"".join(parameter.detach().numpy().tobytes() for parameter in network.parameters())
print("parameters", hashlib.sha256(bits).hexdigest()[:16])  # the same on every rank
dist.destroy_process_group()
