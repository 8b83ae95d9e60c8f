"""Datasets and the loader that turns them into batches."""

from __future__ import annotations

# Batches are Tensors, which must have their methods.
import mpgrad.tensor_methods  # noqa: F401  isort: skip

from mpgrad.data.collate import default_collate
from mpgrad.data.dataset import Dataset, Subset, TensorDataset, random_split
from mpgrad.data.loader import DataLoader

__all__ = ["Dataset", "TensorDataset", "Subset", "random_split", "DataLoader", "default_collate"]
