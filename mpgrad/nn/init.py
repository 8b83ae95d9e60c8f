"""Initialisation of parameters: in place, not recorded, from ``manual_seed``'s generator."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

from mpgrad.base.missing_names import missing_from as _missing_from
from mpgrad.nn.init_matrices import dirac_ as dirac_
from mpgrad.nn.init_matrices import eye_ as eye_
from mpgrad.nn.init_matrices import orthogonal_ as orthogonal_
from mpgrad.nn.init_matrices import sparse_ as sparse_
from mpgrad.nn.init_matrices import trunc_normal_ as trunc_normal_
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.tensor import Tensor

#: Recommended gains: they keep the variance of a layer's output at that of its input.
_GAINS = {
    "linear": 1.0,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), 1.0),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), 1.0),
    "sigmoid": 1.0,
    "tanh": 5.0 / 3.0,
    "relu": math.sqrt(2.0),
    "selu": 3.0 / 4.0,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor on the standard deviation that a nonlinearity needs.

    Args:
        nonlinearity: its name, e.g. ``"relu"``.
        param: the negative slope of ``"leaky_relu"`` (default 0.01).

    Raises:
        ValueError: the name is unknown.
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, int | float):
            raise ValueError(f"negative_slope {slope} not a valid number")
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}")
    return _GAINS[nonlinearity]


@no_grad()
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    """Fill with draws from the uniform distribution on [``a``, ``b``)."""
    return tensor.uniform_(a, b, generator=generator)


@no_grad()
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    """Fill with draws from the normal distribution."""
    return tensor.normal_(mean, std, generator=generator)


@no_grad()
def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with ``val``."""
    return tensor.fill_(val)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with 0."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with 1."""
    return constant_(tensor, 1.0)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Uniform with variance ``gain**2 * 2 / (fan_in + fan_out)``.

    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks",
    2010, equation 16.
    """
    bound = math.sqrt(3.0) * gain * math.sqrt(2.0 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Normal with variance ``gain**2 * 2 / (fan_in + fan_out)`` (Glorot and Bengio, 2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fans(tensor))), generator)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> Tensor:
    """Uniform with variance ``gain**2 / fan``.

    He, Zhang, Ren and Sun, "Delving deep into rectifiers", 2015, section 2.2.

    Args:
        tensor: at least 2-d.
        a: negative slope of the rectifier that follows, for ``"leaky_relu"``.
        mode: ``"fan_in"`` keeps the variance in forward, ``"fan_out"`` in backward.
        nonlinearity: see :func:`calculate_gain`.
    """
    if _is_empty(tensor):
        return tensor
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> Tensor:
    """Normal with variance ``gain**2 / fan`` (He et al., 2015); see :func:`kaiming_uniform_`."""
    if _is_empty(tensor):
        return tensor
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def _is_empty(tensor: Tensor) -> bool:
    """Whether there is nothing to fill; a warning says so."""
    if tensor.numel():
        return False
    warnings.warn("Initializing zero-element tensors is a no-op", UserWarning, stacklevel=3)
    return True


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    fan = fans(tensor)[("fan_in", "fan_out").index(mode)]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def fans(tensor: Tensor) -> tuple[int, int]:
    """(fan in, fan out): how many inputs feed one output, and the reverse.

    Args:
        tensor: a weight of shape (out, in, *kernel).

    Raises:
        ValueError: it has fewer than two dimensions.
    """
    if tensor.ndim < 2:
        raise ValueError(
            "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions, got "
            f"shape {tensor.shape}"
        )
    kernel = math.prod(tensor.shape[2:])
    return tensor.shape[1] * kernel, tensor.shape[0] * kernel


def _older_name(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    name = function.__name__

    @functools.wraps(function)
    def older(*args: Any, **options: Any) -> Tensor:
        warnings.warn(
            f"`nn.init.{name[:-1]}` is now deprecated in favor of `nn.init.{name}`.",
            FutureWarning,
            stacklevel=2,
        )
        return function(*args, **options)

    return older


uniform, normal, constant = _older_name(uniform_), _older_name(normal_), _older_name(constant_)
xavier_uniform, xavier_normal = _older_name(xavier_uniform_), _older_name(xavier_normal_)
kaiming_uniform, kaiming_normal = _older_name(kaiming_uniform_), _older_name(kaiming_normal_)
orthogonal, eye, dirac = _older_name(orthogonal_), _older_name(eye_), _older_name(dirac_)
sparse = _older_name(sparse_)

__getattr__ = _missing_from(__name__)
