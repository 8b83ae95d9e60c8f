"""Data sets of random images and labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

#: How many images a data set has.
COUNT = 512


class _Images(torch.utils.data.Dataset):
    shape: tuple[int, ...] = (28, 28)

    def __init__(
        self,
        root: str,
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        download: bool = False,
    ) -> None:
        draws = np.random.default_rng(int(train))
        self.train, self.transform, self.target_transform = train, transform, target_transform
        images = draws.integers(0, 256, (COUNT, *self.shape), dtype=np.uint8)
        self.images, self.labels = images, draws.integers(0, 10, COUNT).tolist()
        self.data, self.targets = torch.from_numpy(images), torch.tensor(self.labels)
        self.train_data = self.test_data = self.data
        self.train_labels = self.test_labels = self.targets
        self.classes = [str(k) for k in range(10)]

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image, label = Image.fromarray(self.images[index]), self.labels[index]
        return (
            image if self.transform is None else self.transform(image),
            label if self.target_transform is None else self.target_transform(label),
        )


class MNIST(_Images):
    """Grey images of 28 x 28."""


class FashionMNIST(_Images):
    """Grey images of 28 x 28."""


class CIFAR10(_Images):
    """Images of 32 x 32 with three colours."""

    shape = (32, 32, 3)
