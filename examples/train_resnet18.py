"""Train ResNet-18 for images of 32 x 32 on handwritten digits, with mpgrad or with PyTorch.

pip install "mpgrad[data]"
python examples/train_resnet18.py                    # --help shows the options
python examples/train_resnet18.py --library torch    # the same with PyTorch, where it is installed

After every epoch the whole state of the training goes to a file, if --checkpoint names one. A run
that is interrupted goes on from there, to the bits that it would have reached without a break.
"""

import argparse
import os
import sys
import time

import numpy as np
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
parser.add_argument("--library", choices=("mpgrad", "torch"), default="mpgrad")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--images", type=int, default=1797, help="how many to take (at most 1797)")
parser.add_argument("--width", type=int, default=64, help="channels of the first block")
parser.add_argument("--workers", type=int, default=1, help="processes that make the batches")
parser.add_argument("--checkpoint", help="a file: written after every epoch, continued from")
parser.add_argument("--steps", type=int, default=0, help="stop after this many (0: never)")
options = parser.parse_args()

if options.library == "torch":
    import torch
else:
    import mpgrad as torch

nn, F = torch.nn, torch.nn.functional


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, wider, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(wider)
        self.around = nn.Sequential()
        if stride != 1 or channels != wider:
            self.around = nn.Sequential(
                nn.Conv2d(channels, wider, 1, stride=stride, bias=False), nn.BatchNorm2d(wider)
            )

    def forward(self, x):
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.around(x))


def resnet18(width: int) -> nn.Module:
    """Four pairs of blocks (He et al., 2015), with the first layer that small images get."""
    layers = [nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for stage, stride in enumerate((1, 2, 2, 2)):
        for step in (stride, 1):
            layers.append(Block(channels, width << stage, step))
            channels = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class Digits(torch.utils.data.Dataset):
    """Digits of 8 x 8 as images of 32 x 32; each sample is made when it is asked for."""

    def __init__(self, chosen: np.ndarray) -> None:
        digits = load_digits()
        self.images = (digits.images[chosen] / 16.0).astype(np.float32)
        self.labels = digits.target[chosen]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int):
        return np.kron(self.images[index], np.ones((4, 4), np.float32))[None], self.labels[index]


def start_alike(model: nn.Module) -> None:
    """Parameters that do not depend on the library: He's initialisation, drawn by NumPy."""
    draws = np.random.default_rng(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                fan = parameter.numel() // parameter.shape[0]
                values = draws.standard_normal(tuple(parameter.shape)) * (2.0 / fan) ** 0.5
                parameter.copy_(torch.from_numpy(values.astype(np.float32)))
        model[-1].bias.zero_()


class InOrderOf(torch.utils.data.Sampler):
    """A new random order for each epoch, which does not depend on the library."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, 0

    def __iter__(self):
        return iter(np.random.default_rng(self.epoch).permutation(self.count).tolist())

    def __len__(self) -> int:
        return self.count


shuffled = np.random.default_rng(7).permutation(1797)[: options.images]
held_out = max(1, len(shuffled) // 5)
train, test = Digits(shuffled[held_out:]), Digits(shuffled[:held_out])
order = InOrderOf(len(train))
loader = torch.utils.data.DataLoader(
    train, options.batch_size, sampler=order, num_workers=options.workers
)
test_loader = torch.utils.data.DataLoader(test, options.batch_size)

model = resnet18(options.width)
start_alike(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs)
first = 0
if options.checkpoint and os.path.exists(options.checkpoint):
    state = torch.load(options.checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    first = state["epoch"]
    print(f"goes on after epoch {first}")

steps, times = 0, []
for epoch in range(first, options.epochs):
    model.train()
    order.epoch = epoch
    for k, (images, labels) in enumerate(loader):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
        steps += 1
        print(f"epoch {epoch + 1} step {k + 1:>3}/{len(loader)} loss {loss.item():.6f}", flush=True)
        if steps == options.steps:
            print(f"{1000 * np.median(times):.0f} ms a step (median of {len(times)})")
            sys.exit()
    scheduler.step()

    model.eval()
    with torch.no_grad():
        right = sum(
            (model(images).argmax(1) == labels).sum().item() for images, labels in test_loader
        )
    print(f"epoch {epoch + 1} test accuracy {right / len(test):.1%}", flush=True)
    if options.checkpoint:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "epoch": epoch + 1,
        }
        torch.save(state, options.checkpoint + ".new")
        os.replace(options.checkpoint + ".new", options.checkpoint)  # never half a file
print(f"{1000 * np.median(times):.0f} ms a step (median of {len(times)})")
print(f"sum of all parameters {sum(p.double().sum().item() for p in model.parameters())!r}")
