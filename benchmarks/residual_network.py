"""ResNet-18, written once for every library that has PyTorch's ``nn``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def resnet18(library: Any, *, is_small: bool) -> Any:
    """The network of He et al., "Deep residual learning for image recognition", 2015, table 1.

    Args:
        library: ``mpgrad`` or ``torch``.
        is_small: for 32 x 32 images and 10 classes: a 3 x 3 convolution first and no pooling, as
            is usual for CIFAR. Else for 224 x 224 images and 1000 classes.
    """
    nn: Any = library.nn
    module: Any = nn.Module

    class BasicBlock(module):  # type: ignore[misc]
        """Two 3 x 3 convolutions, added to the input."""

        def __init__(self, channels_in: int, channels: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(channels)
            self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(channels)
            self.shortcut = nn.Sequential()
            if stride != 1 or channels_in != channels:
                self.shortcut = nn.Sequential(
                    nn.Conv2d(channels_in, channels, 1, stride, bias=False),
                    nn.BatchNorm2d(channels),
                )

        def forward(self, x: Any) -> Any:
            out = library.relu(self.bn1(self.conv1(x)))
            return library.relu(self.bn2(self.conv2(out)) + self.shortcut(x))

    class ResNet18(module):  # type: ignore[misc]
        """(batch, 3, height, width) -> (batch, classes)."""

        def __init__(self) -> None:
            super().__init__()
            kernel, stride, padding = (3, 1, 1) if is_small else (7, 2, 3)
            self.stem = nn.Sequential(
                nn.Conv2d(3, 64, kernel, stride, padding, bias=False),
                nn.BatchNorm2d(64),
                nn.ReLU(),
                *([] if is_small else [nn.MaxPool2d(3, 2, 1)]),
            )
            blocks, channels_in = [], 64
            for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
                blocks.append(BasicBlock(channels_in, channels, stride))
                blocks.append(BasicBlock(channels, channels, 1))
                channels_in = channels
            self.blocks = nn.Sequential(*blocks)
            self.classifier = nn.Linear(512, 10 if is_small else 1000)

        def forward(self, x: Any) -> Any:
            return self.classifier(self.blocks(self.stem(x)).mean((2, 3)))

    model = ResNet18()
    set_parameters(library, model)
    return model


def set_parameters(library: Any, model: Any) -> None:
    """The same numbers for every library: weights after He et al. 2015, scales 1, shifts 0."""
    random = np.random.default_rng(0)
    with library.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                fan_in = math.prod(parameter.shape[1:])
                values = random.standard_normal(tuple(parameter.shape), np.float32)
                parameter.copy_(library.tensor(values * np.float32((2 / fan_in) ** 0.5)))
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
