"""``mg.utils.data``: another name of ``mpgrad.data``."""

from __future__ import annotations

from mpgrad.base.lazy import attach as _attach
from mpgrad.data import BatchSampler as BatchSampler
from mpgrad.data import ChainDataset as ChainDataset
from mpgrad.data import ConcatDataset as ConcatDataset
from mpgrad.data import DataLoader as DataLoader
from mpgrad.data import Dataset as Dataset
from mpgrad.data import IterableDataset as IterableDataset
from mpgrad.data import RandomSampler as RandomSampler
from mpgrad.data import Sampler as Sampler
from mpgrad.data import SequentialSampler as SequentialSampler
from mpgrad.data import StackDataset as StackDataset
from mpgrad.data import Subset as Subset
from mpgrad.data import SubsetRandomSampler as SubsetRandomSampler
from mpgrad.data import TensorDataset as TensorDataset
from mpgrad.data import WeightedRandomSampler as WeightedRandomSampler
from mpgrad.data import default_collate as default_collate
from mpgrad.data import default_convert as default_convert
from mpgrad.data import get_worker_info as get_worker_info
from mpgrad.data import random_split as random_split

__all__ = [  # noqa: F822  (DistributedSampler is loaded on first use)
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "random_split",
]

__getattr__, __dir__ = _attach(
    __name__, {"DistributedSampler": "mpgrad.distributed.distributed_sampler"}
)
