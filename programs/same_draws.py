"""PyTorch's random functions draw what mpgrad's would, so that a program starts alike with both."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

import mpgrad as mg

#: Functions that make a tensor, and methods that fill one.
_FUNCTIONS = (
    "rand randn randint randperm rand_like randn_like randint_like normal bernoulli multinomial "
    "poisson"
)
_METHODS = "uniform_ normal_ random_ bernoulli_ exponential_ log_normal_ cauchy_ geometric_"
_FLOATING = "rand randn normal"


def install(torch: ModuleType) -> None:
    """Replace the random functions of ``torch``, for the rest of this process."""
    for name in _FUNCTIONS.split():
        if hasattr(mg, name):
            setattr(torch, name, _function(torch, name, getattr(torch, name)))
    for name in _METHODS.split():
        if hasattr(mg.Tensor, name):
            setattr(torch.Tensor, name, _method(torch, name))
    functional = torch.nn.functional
    for name in [
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "alpha_dropout",
        "feature_alpha_dropout",
    ]:
        if hasattr(mg.nn.functional, name):
            setattr(functional, name, _dropout(torch, name))
    torch.dropout = lambda input, p, train: functional.dropout(input, p, train)  # type: ignore[attr-defined]
    torch.manual_seed = torch.random.manual_seed = mg.manual_seed  # type: ignore[attr-defined]
    if hasattr(mg, "Generator"):
        torch.Generator = mg.Generator  # type: ignore[attr-defined]


def _function(torch: ModuleType, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def draw(*args: Any, **options: Any) -> Any:
        dtype, requires_grad = options.pop("dtype", None), options.pop("requires_grad", False)
        out = options.pop("out", None)
        for ignored in ("device", "layout", "pin_memory", "memory_format"):
            options.pop(ignored, None)
        if dtype is None and name in _FLOATING.split():
            floating = [
                x.dtype for x in args if isinstance(x, torch.Tensor) and x.is_floating_point()
            ]
            dtype = floating[0] if floating else torch.get_default_dtype()
        if dtype is not None and name != "normal":
            options["dtype"] = _dtype(dtype)
        value = getattr(mg, name)(*(_ours(torch, x) for x in args), **options)
        drawn = torch.from_numpy(np.array(value.numpy()))
        drawn = drawn if dtype is None else drawn.to(dtype)
        return drawn.requires_grad_(requires_grad) if out is None else out.copy_(drawn)

    return draw


def _method(torch: ModuleType, name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(torch.Tensor, name))
    def fill(self: Any, *args: Any, **options: Any) -> Any:
        ours = mg.zeros(tuple(self.shape), dtype=_dtype(self.dtype))
        getattr(ours, name)(*(_ours(torch, x) for x in args), **options)
        return self.copy_(torch.from_numpy(np.array(ours.numpy())))

    return fill


def _dropout(torch: ModuleType, name: str) -> Callable[..., Any]:
    real = getattr(torch.nn.functional, name)

    @functools.wraps(real)
    def drop(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or p == 0:
            return real(input, p, training, inplace)
        ours = mg.ones(tuple(input.shape), dtype=_dtype(input.dtype))
        kept = getattr(mg.nn.functional, name)(ours, p, True).numpy()
        factor = torch.from_numpy(np.array(kept))
        return input.mul_(factor) if inplace else input * factor

    return drop


def _ours(torch: ModuleType, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return mg.tensor(value.detach().numpy())
    if isinstance(value, torch.dtype):
        return _dtype(value)
    return tuple(value) if isinstance(value, torch.Size) else value


def _dtype(dtype: Any) -> Any:
    return getattr(mg, str(dtype).removeprefix("torch."))
