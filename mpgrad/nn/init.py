"""How parameters start: in-place initialisation, not recorded, from ``manual_seed``'s generator."""

from __future__ import annotations

import math

from mpgrad.autograd.grad_mode import no_grad
from mpgrad.tensor import Tensor

#: Recommended gains: what keeps the variance of a layer's output at that of its input.
_GAINS = {
    "linear": 1.0,
    "conv2d": 1.0,
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
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}")
    return _GAINS[nonlinearity]


@no_grad()
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Fill with draws from the uniform distribution on [``a``, ``b``)."""
    return tensor.uniform_(a, b)


@no_grad()
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Fill with draws from the normal distribution."""
    return tensor.normal_(mean, std)


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


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Uniform with variance ``gain**2 * 2 / (fan_in + fan_out)``.

    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks",
    2010, equation 16.
    """
    bound = math.sqrt(3.0) * gain * math.sqrt(2.0 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Normal with variance ``gain**2 * 2 / (fan_in + fan_out)`` (Glorot and Bengio, 2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fans(tensor))))


def kaiming_uniform_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """Uniform with variance ``gain**2 / fan``.

    He, Zhang, Ren and Sun, "Delving deep into rectifiers", 2015, section 2.2.

    Args:
        tensor: at least 2-d.
        a: negative slope of the rectifier that follows, for ``"leaky_relu"``.
        mode: ``"fan_in"`` keeps the variance in forward, ``"fan_out"`` in backward.
        nonlinearity: see :func:`calculate_gain`.
    """
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """Normal with variance ``gain**2 / fan`` (He et al., 2015); see :func:`kaiming_uniform_`."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity))


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
