"""Activation functions as Modules, for use in Sequential."""

from __future__ import annotations

from typing import Any

from mpgrad.nn import functional as F
from mpgrad.nn.module import Module
from mpgrad.nn.parameter import Parameter
from mpgrad.ops.new_tensors.creation import full
from mpgrad.recording.tensors.tensor import Tensor


class _Activation(Module):
    """An activation that may write into its input.

    Args:
        inplace: do so.
    """

    #: Attributes that ``repr`` shows.
    _shown: tuple[str, ...] = ()
    inplace: bool = False

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        shown = [f"{name}={getattr(self, name)}" for name in self._shown]
        return ", ".join([*shown, "inplace=True"] if self.inplace else shown)


class ReLU(_Activation):
    """``max(input, 0)``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.relu(input, self.inplace)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.tanh(input)


class Sigmoid(Module):
    """``1 / (1 + exp(-input))``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.sigmoid(input)


class GELU(Module):
    """``input * P(X <= input)`` for a standard normal X; see ``mg.nn.functional.gelu``."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.gelu(input, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(_Activation):
    """``input * sigmoid(input)``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.silu(input, self.inplace)


class Softmax(Module):
    """``exp(input)`` scaled to a sum of 1 along ``dim``.

    Args:
        dim: without it, one is chosen by the number of dimensions, with a warning.
    """

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.softmax(input, self.dim, _stacklevel=5)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """The logarithm of :class:`Softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.log_softmax(input, self.dim, _stacklevel=5)


class LeakyReLU(_Activation):
    """``input``, multiplied by ``negative_slope`` where it is negative."""

    _shown: tuple[str, ...] = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = negative_slope

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.leaky_relu(input, self.negative_slope, self.inplace)


class ELU(_Activation):
    """``input``, and ``alpha * (exp(input) - 1)`` where it is negative."""

    _shown: tuple[str, ...] = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.elu(input, self.alpha, self.inplace)


class CELU(_Activation):
    """See ``mg.nn.functional.celu``."""

    _shown: tuple[str, ...] = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.celu(input, self.alpha, self.inplace)


class SELU(_Activation):
    """See ``mg.nn.functional.selu``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.selu(input, self.inplace)


class Mish(_Activation):
    """``input * tanh(softplus(input))``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.mish(input, self.inplace)


class Hardsigmoid(_Activation):
    """``input / 6 + 1 / 2`` between 0 and 1."""

    def extra_repr(self) -> str:
        return ""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.hardsigmoid(input, self.inplace)


class Hardswish(Hardsigmoid):
    """``input * hardsigmoid(input)``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.hardswish(input, self.inplace)


class Hardtanh(_Activation):
    """``input`` between ``min_val`` and ``max_val``.

    Raises:
        ValueError: there is nothing between them.
    """

    _shown: tuple[str, ...] = (
        "min_val",
        "max_val",
    )

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        if max_val <= min_val:
            raise ValueError(f"max_val must be larger than min_val, got {max_val} and {min_val}")
        self.min_val, self.max_val = min_val, max_val

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)


class ReLU6(Hardtanh):
    """``input`` between 0 and 6."""

    _shown: tuple[str, ...] = ()

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(0.0, 6.0, inplace)


class Threshold(_Activation):
    """``input`` where it is greater than ``threshold``, ``value`` elsewhere."""

    _shown: tuple[str, ...] = (
        "threshold",
        "value",
    )

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.threshold, self.value = threshold, value

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.threshold(input, self.threshold, self.value, self.inplace)


class Softplus(_Activation):
    """See ``mg.nn.functional.softplus``."""

    _shown: tuple[str, ...] = (
        "beta",
        "threshold",
    )

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.softplus(input, self.beta, self.threshold)


class LogSigmoid(Module):
    """``log(sigmoid(input))``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.logsigmoid(input)


class Softsign(Module):
    """``input / (1 + |input|)``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.softsign(input)


class Tanhshrink(Module):
    """``input - tanh(input)``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.tanhshrink(input)


class Hardshrink(Module):
    """``input``, and 0 between ``-lambd`` and ``lambd``."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def extra_repr(self) -> str:
        return str(self.lambd)

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.hardshrink(input, self.lambd)


class Softshrink(Hardshrink):
    """``input`` moved by ``lambd`` towards 0."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.softshrink(input, self.lambd)


class PReLU(Module):
    """``input``, multiplied by a learned weight where it is negative.

    Args:
        num_parameters: 1, or one for each channel (dimension 1).
        init: their first value.
        device: where they lie.
        dtype: of them.
    """

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(full((num_parameters,), float(init), dtype=dtype, device=device))

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class GLU(Module):
    """The first half along ``dim`` times ``sigmoid`` of the second."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """(..., 2 * n, ...) -> (..., n, ...)."""
        return F.glu(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmin(Softmax):
    """:class:`Softmax` of ``-input``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.softmin(input, self.dim, _stacklevel=5)


class Softmax2d(Module):
    """Softmax over the channels of images.

    Raises:
        ValueError: the input has neither three nor four dimensions.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, height, width), same shape."""
        if input.ndim not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.ndim}D instead")
        return F.softmax(input, -3)
