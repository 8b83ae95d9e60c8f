"""Datasets, samplers, and the loader that turns them into batches.

Not here: the processes of the engine; a loader has its own. Begin with ``loader``.
"""

from __future__ import annotations

# Batches are Tensors, which must have their methods.
import mpgrad.tensor_methods  # noqa: F401  isort: skip

from mpgrad.base.lazy import attach as _attach
from mpgrad.data.collate import default_collate, default_convert
from mpgrad.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from mpgrad.data.idx_files import read_idx
from mpgrad.data.loader import DataLoader
from mpgrad.data.loader_worker import get_worker_info
from mpgrad.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
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
    "read_idx",
]

# It stands on the layers above, which know who the ranks are.
__getattr__, __dir__ = _attach(
    __name__,
    {"DistributedSampler": "mpgrad.distributed.distributed_sampler"},
    called="mpgrad.utils.data",
)
