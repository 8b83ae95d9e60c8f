"""The demo's second part: a small convolutional network learns handwritten digits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import mpgrad as mg
from mpgrad import nn
from mpgrad.data import DataLoader, Subset, TensorDataset, random_split

EPOCHS = 12
BATCH_SIZE = 64


@dataclass(frozen=True)
class Digits:
    """Images (n, 1, 8, 8) with values from 0 to 1, and their labels from 0 to 9."""

    train: Subset
    test: Subset


@dataclass(frozen=True)
class Training:
    """What came out of one training, and where its time went.

    Attributes:
        forward_s, backward_s, optimizer_s: seconds, over all steps.
        accuracy: share of the test images that are recognised.
        parameters: the bytes of all parameters.
        tasks: NodeTasks by who ran them (empty where all ran in this process).
        auto_mode: what ``Engine(mode="auto")`` would choose for a step's backward.
    """

    mode: str
    steps: int
    forward_s: float
    backward_s: float
    optimizer_s: float
    accuracy: float
    parameters: bytes
    tasks: Mapping[str, int]
    auto_mode: str


def load() -> Digits:
    """The images that scikit-learn ships, 4 of 5 to train on; the same split every time.

    Raises:
        ImportError: scikit-learn is not installed.
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    images = mg.tensor((data.images / 16.0).astype(np.float32)[:, None])
    labels = mg.tensor(data.target)
    train, test = random_split(
        TensorDataset(images, labels), [0.8, 0.2], generator=np.random.default_rng(0)
    )
    return Digits(train, test)


def network(layers: Any = nn) -> Any:
    """Two convolutions and a linear layer: (batch, 1, 8, 8) -> (batch, 10).

    Args:
        layers: whose layers; the benchmarks make the same network of ``torch.nn``'s.
    """
    return layers.Sequential(
        layers.Conv2d(1, 16, 3, padding=1),
        layers.BatchNorm2d(16),
        layers.ReLU(),
        layers.MaxPool2d(2),
        layers.Conv2d(16, 32, 3, padding=1),
        layers.BatchNorm2d(32),
        layers.ReLU(),
        layers.MaxPool2d(2),
        layers.Flatten(),
        layers.Linear(128, 10),
    )


def steps(digits: Digits, epochs: int = EPOCHS) -> int:
    """How many steps a training takes."""
    return epochs * len(DataLoader(digits.train, BATCH_SIZE))


def train(
    mode: str, digits: Digits, after_step: Callable[[float], None], epochs: int = EPOCHS
) -> Training:
    """Train from scratch; the same seed, so that every mode starts from the same numbers.

    Args:
        mode: of the engine, "local" or "process".
        digits: the images.
        after_step: called with the loss after each step.
        epochs: passes over the training images.
    """
    mg.manual_seed(0)
    model, loss_function = network(), nn.CrossEntropyLoss()
    optimizer = mg.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(digits.train, BATCH_SIZE, shuffle=True)
    forward_s = backward_s = optimizer_s = 0.0

    with mg.Engine(mode=mode) as engine:
        for _ in range(epochs):
            for images, labels in loader:
                start = time.perf_counter()
                loss = loss_function(model(images), labels)
                recorded = time.perf_counter()
                optimizer.zero_grad()
                loss.backward()
                differentiated = time.perf_counter()
                optimizer.step()
                end = time.perf_counter()

                forward_s += recorded - start
                backward_s += differentiated - recorded
                optimizer_s += end - differentiated
                after_step(loss.item())
        tasks = engine.statistics().tasks

    with mg.Engine(mode="auto") as engine:
        auto_mode = engine.explain(loss_function(model(images), labels)).mode
    return Training(
        mode=mode,
        steps=epochs * len(loader),
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
        accuracy=accuracy(model, digits.test),
        parameters=b"".join(p.detach().numpy().tobytes() for p in model.parameters()),
        tasks=tasks,
        auto_mode=auto_mode,
    )


def accuracy(model: nn.Module, test: Subset) -> float:
    """The share of ``test`` that ``model`` recognises."""
    images, labels = test[:]
    model.eval()
    with mg.no_grad():
        recognised = model(images).argmax(1) == labels
    return recognised.float().mean().item()  # type: ignore[no-any-return]
