"""Which entries of a state dict fit a Module, and what to say about the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mpgrad.tensors.tensor import Tensor


class IncompatibleKeys(NamedTuple):
    """The keys that ``load_state_dict(strict=False)`` could not match."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def check_is_mapping(state_dict: Any) -> None:
    """Refuse a path or a list.

    Raises:
        TypeError: it is no mapping.
    """
    if not isinstance(state_dict, Mapping):
        remedy = " Load the file first, with mg.load." if isinstance(state_dict, str) else ""
        raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.{remedy}")


def incompatible_keys(
    kind: str, state_dict: Mapping[str, Any], own: Mapping[str, Tensor], strict: bool
) -> IncompatibleKeys:
    """The names that only ``own`` or only ``state_dict`` has.

    Args:
        kind: the class of the Module, for messages.
        state_dict: Tensors or arrays.
        own: what the Module has.
        strict: whether the names have to be the same.

    Raises:
        RuntimeError: a shape differs, or ``strict`` and a name is missing or unknown.
    """
    missing = [name for name in own if name not in state_dict]
    unexpected = [name for name in state_dict if name not in own]
    found = [_mismatch(name, value, own[name]) for name, value in state_dict.items() if name in own]
    problems = [text for text in found if text]
    if strict and unexpected:
        problems.append(f"Unexpected key(s) in state_dict: {', '.join(unexpected)}")
    if strict and missing:
        problems.append(f"Missing key(s) in state_dict: {', '.join(missing)}")
    if problems:
        text = "\n\t".join(problems)
        raise RuntimeError(f"Error(s) in loading state_dict for {kind}:\n\t{text}")
    return IncompatibleKeys(missing, unexpected)


def _mismatch(name: str, value: Any, own: Tensor) -> str:
    """Why ``value`` cannot be copied into ``own``; empty if it can."""
    if not isinstance(value, Tensor | np.ndarray):
        return f"{name}: expected a Tensor or an array from checkpoint, got {type(value).__name__}"
    if value.shape == own.shape:
        return ""
    return (
        f"size mismatch for {name}: copying a param with shape {tuple(value.shape)} from "
        f"checkpoint, the shape in current model is {own.shape}"
    )
