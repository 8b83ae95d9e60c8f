"""The transforms that programs use most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image


class Compose:
    """One transform after another."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    """A float tensor (channels, height, width) in [0, 1]."""

    def __call__(self, image: Any) -> Any:
        array = np.asarray(image, np.float32) / np.float32(255)
        array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(array))


class Normalize:
    """Subtract ``mean`` and divide by ``std``, each a number or one for each channel."""

    def __init__(self, mean: Any, std: Any, inplace: bool = False) -> None:
        self.mean, self.std = (np.asarray(x, np.float32).reshape(-1, 1, 1) for x in (mean, std))

    def __call__(self, image: Any) -> Any:
        return (image - torch.from_numpy(self.mean)) / torch.from_numpy(self.std)


class Resize:
    """An image of ``size``: (height, width), or both in one number."""

    def __init__(self, size: Any, interpolation: Any = Image.Resampling.BILINEAR) -> None:
        self.height, self.width = (size, size) if isinstance(size, int) else size
        self.interpolation = interpolation

    def __call__(self, image: Any) -> Any:
        return image.resize((self.width, self.height), self.interpolation)


class Lambda:
    """A function of the user's."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, image: Any) -> Any:
        return self.function(image)
