"""Runs one operator on one sample in one library, and tells whether two outcomes agree."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.operator_database.database import CannotBeHad, tensors_in

#: How closely values agree, by dtype, as a part of the largest one.
TOLERANCES = {
    "float16": 4e-3,
    "float32": 2e-5,
    "complex64": 2e-5,
    "float64": 1e-9,
    "complex128": 1e-9,
}

Call = tuple[tuple[Any, ...], dict[str, Any]]


def attempt(run: Callable[[], Any]) -> Any:
    """What ``run`` gives, or the exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with np.errstate(all="ignore"):
            try:
                return run()
            except CannotBeHad:
                raise
            except Exception as error:
                return error


def arrays_of(value: Any) -> Any:
    """A result as plain data: arrays in place of tensors, tuples of everything that holds some."""
    if hasattr(value, "detach"):
        value = value.detach()
        value = value.resolve_conj() if hasattr(value, "resolve_conj") else value
        value = value.resolve_neg() if hasattr(value, "resolve_neg") else value
        return np.array(value.numpy())
    if isinstance(value, list | tuple):
        return tuple(arrays_of(item) for item in value)
    return value


def difference(
    here: Any, there: Any, *, values: bool = True, ties: bool = False, close: float = 0.0
) -> str:
    """In what a result differs from PyTorch's; empty if it does not.

    Args:
        values: False: shapes and dtypes alone count.
        ties: of integers, which are places, shapes and dtypes alone count.
        close: how closely values have to agree where their dtype would ask for more.
    """
    if isinstance(here, Exception):
        return f"raises {type(here).__name__}: {' '.join(str(here).split())[:100]}"
    if isinstance(there, tuple):
        if not isinstance(here, tuple) or len(here) != len(there):
            return f"{_short(here)} in place of {_short(there)}"
        pairs = zip(here, there, strict=True)
        found = (difference(a, b, values=values, ties=ties, close=close) for a, b in pairs)
        return next(filter(None, found), "")
    if isinstance(there, np.ndarray):
        if not isinstance(here, np.ndarray):
            return f"{_short(here)} in place of {_short(there)}"
        if here.dtype != there.dtype:
            return f"dtype {here.dtype} in place of {there.dtype}"
        if here.shape != there.shape:
            return f"shape {here.shape} in place of {there.shape}"
        values = values and not (ties and there.dtype == np.int64)
        return _of_values(here, there, close) if values else ""
    if isinstance(there, float) and isinstance(here, float):
        return _of_values(np.asarray(here), np.asarray(there), close) if values else ""
    if here is None or there is None:
        return "" if here is there else f"{_short(here)} in place of {_short(there)}"
    if isinstance(there, bool | int | complex | str):
        return "" if here == there else f"{_short(here)} in place of {_short(there)}"
    return ""


def _of_values(here: Any, there: Any, close: float, scale: float = 0.0) -> str:
    """As ``difference``, of arrays; margins are those of numbers of at least the size ``scale``."""
    if there.dtype.kind == "c":  # each part for itself: one of them may be infinite
        sizes = np.abs(there[np.isfinite(there)])
        close = max(close, TOLERANCES.get(str(here.dtype), 1e-9))
        least = float(sizes.max(initial=0.0))
        parts = ((part(here), part(there)) for part in (np.real, np.imag))
        return "; ".join(filter(None, (_of_values(a, b, close, least) for a, b in parts)))
    if here.dtype.kind not in "fc":
        return "" if (here == there).all() else f"{_short(here)} in place of {_short(there)}"
    close = max(close, TOLERANCES.get(str(here.dtype), 1e-9))
    finite = np.isfinite(there)
    scale = max(scale, float(np.abs(there[finite]).max(initial=0.0)))
    margin = close * max(scale, 0.1)
    if np.allclose(here, there, rtol=close, atol=margin, equal_nan=True):
        return ""
    wrong = ~np.isclose(here, there, rtol=close, atol=margin, equal_nan=True)
    where = tuple(int(at) for at in np.argwhere(wrong)[0])
    return f"{here[where]} in place of {there[where]}"


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return " ".join(repr(value).split())[:40]


def weights(index: int, array: Any) -> Any:
    """Fixed numbers of the shape and dtype of ``array``, other ones for each ``index``."""
    generator = np.random.RandomState(index)
    numbers = generator.uniform(0.5, 1.5, array.shape)
    if array.dtype.kind == "c":
        numbers = numbers + 1j * generator.uniform(0.5, 1.5, array.shape)
    return np.asarray(numbers, array.dtype)


def derivatives(library: Any, function: Any, call: Call, order: int) -> Any:
    """The gradients of a weighted sum of all results; of the second order, those of these again.

    Returns:
        A tuple with None for inputs without one; None if no result requires grad.
    """
    args, kwargs = call
    inputs = [t for t in tensors_in([args, kwargs], library) if _is_floating(t)]
    for tensor in inputs:
        tensor.requires_grad_()
    results = function(*args, **kwargs)
    gradients: Any = None
    for level in range(order):
        floating = [t for t in tensors_in([results], library) if _is_floating(t)]
        wanted = [t for t in floating if t.requires_grad]
        if not wanted:
            gradients = [None] * len(inputs) if level else None
            break
        seeds = [
            library.from_numpy(weights(level * 100 + at, arrays_of(tensor)))
            for at, tensor in enumerate(floating)
            if tensor.requires_grad
        ]
        gradients = library.autograd.grad(
            wanted, inputs, seeds, allow_unused=True, create_graph=level + 1 < order
        )
        results = gradients
    if gradients is None:
        return None
    # What is constant has a second derivative of zero: PyTorch says it in either way.
    return tuple(
        np.zeros_like(arrays_of(tensor)) if found is None and order > 1 else arrays_of(found)
        for found, tensor in zip(gradients, inputs, strict=True)
    )


def _is_floating(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


def shares_memory(result: Any, arguments: Any, library: Any) -> tuple[bool, ...]:
    """For each tensor of a result, whether it lies in the memory of an argument."""
    taken = [arrays_of_memory(tensor) for tensor in tensors_in([arguments], library)]
    return tuple(
        any(np.may_share_memory(arrays_of_memory(tensor), other) for other in taken)
        for tensor in tensors_in([result], library)
    )


def arrays_of_memory(tensor: Any) -> Any:
    return tensor.detach().numpy()
