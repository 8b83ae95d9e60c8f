"""``mg.utils.data``: another name of ``mpgrad.data``."""

from __future__ import annotations

from mpgrad.data import DataLoader as DataLoader
from mpgrad.data import Dataset as Dataset
from mpgrad.data import Subset as Subset
from mpgrad.data import TensorDataset as TensorDataset
from mpgrad.data import default_collate as default_collate
from mpgrad.data import random_split as random_split

__all__ = ["DataLoader", "Dataset", "Subset", "TensorDataset", "default_collate", "random_split"]
