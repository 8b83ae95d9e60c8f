"""The part of torchvision that loads images, with random images: nothing is downloaded.

It works with whatever ``import torch`` gives.
"""

from torchvision import datasets, transforms, utils

__all__ = ["datasets", "transforms", "utils"]
