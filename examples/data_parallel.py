"""Train a network on handwritten digits in several processes, each of which sees its own part.

pip install "mpgrad[data]"
mpgrad run --nproc-per-node 4 examples/data_parallel.py [epochs]
torchrun --nproc-per-node 4 examples/data_parallel.py --library torch    # the same with PyTorch

On several hosts, the same line on each of them (docs/many-hosts.md):
mpgrad run --nnodes 2 --nproc-per-node 4 --rdzv-endpoint HOST:29400 examples/data_parallel.py
"""

import argparse
import hashlib

import numpy as np
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
parser.add_argument("epochs", type=int, nargs="?", default=5)
parser.add_argument("--library", choices=("mpgrad", "torch"), default="mpgrad")
options = parser.parse_args()

if options.library == "torch":
    import torch
    import torch.distributed as dist
else:
    import mpgrad as torch
    import mpgrad.distributed as dist

nn, data = torch.nn, torch.utils.data
BATCH = 64  # of all ranks together

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()

digits = load_digits()
images = torch.tensor((digits.images / 16.0).astype(np.float32).reshape(-1, 64))
train = data.TensorDataset(images[:1500], torch.tensor(digits.target[:1500]))
sampler = data.DistributedSampler(train)
loader = data.DataLoader(train, batch_size=BATCH // ranks, sampler=sampler)

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
model = nn.parallel.DistributedDataParallel(network)  # every rank gets the parameters of rank 0
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

for epoch in range(options.epochs):
    sampler.set_epoch(epoch)
    for batch, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), labels)
        loss.backward()  # while it runs, the gradients of all ranks are averaged
        optimizer.step()
    dist.all_reduce(total := loss.detach().clone() / ranks)
    if rank == 0:
        with torch.no_grad():
            right = model.module(images[1500:]).argmax(1) == torch.tensor(digits.target[1500:])
        print(f"epoch {epoch + 1}  loss {total.item():.4f}  accuracy {right.float().mean():.1%}")

bits = b"".join(parameter.detach().numpy().tobytes() for parameter in network.parameters())
print("parameters", hashlib.sha256(bits).hexdigest()[:16])  # the same on every rank
dist.destroy_process_group()
