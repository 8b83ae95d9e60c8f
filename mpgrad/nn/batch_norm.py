"""BatchNorm1d, 2d and 3d: standardise each channel, with running statistics for eval."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.nn import functional as F
from mpgrad.nn import init
from mpgrad.nn.module import Module
from mpgrad.nn.parameter import Parameter
from mpgrad.ops.new_tensors.creation import empty, ones, zeros
from mpgrad.recording.tensors.tensor import Tensor


class ChannelNorm(Module):
    """Scale, shift and running statistics of channels, for batch and instance normalisation.

    Args: those of ``BatchNorm``.
    """

    #: Since 2 it has ``num_batches_tracked``.
    _version = 2
    _dimensions: tuple[int, ...] = ()

    weight: Parameter | None
    bias: Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        made: dict[str, Any] = {"dtype": dtype, "device": device}
        for name, learned in (("weight", affine), ("bias", affine and bias)):
            values = Parameter(empty(num_features, **made)) if learned else None
            self.register_parameter(name, values)
        tracked = track_running_stats
        self.register_buffer("running_mean", zeros(num_features, **made) if tracked else None)
        self.register_buffer("running_var", ones(num_features, **made) if tracked else None)
        count = zeros((), dtype=np.int64, device=device) if tracked else None
        self.register_buffer("num_batches_tracked", count)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale 1, shift 0, and running statistics of mean 0 and variance 1."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)
        self.reset_running_stats()

    def reset_running_stats(self) -> None:
        """Running statistics of mean 0 and variance 1, of no batch."""
        if self.running_mean is None or self.running_var is None:
            return
        self.running_mean.zero_()
        self.running_var.fill_(1)
        self.num_batches_tracked.zero_()  # type: ignore[union-attr]

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *lists: Any
    ) -> None:
        key = f"{prefix}num_batches_tracked"
        if (local_metadata.get("version") or 1) < 2 and self.num_batches_tracked is not None:
            state_dict.setdefault(key, self.num_batches_tracked)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *lists)

    def _check(self, input: Tensor) -> None:
        if input.ndim not in self._dimensions:
            expected = " or ".join(f"{n}D" for n in self._dimensions)
            raise ValueError(f"expected {expected} input (got {input.ndim}D input)")
        self._check_channels(input)

    def _check_channels(self, input: Tensor) -> None:
        if input.shape[1] != self.num_features:
            raise ValueError(
                f"{type(self).__name__}: expected {self.num_features} channels, got input of shape "
                f"{tuple(input.shape)}"
            )

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class BatchNorm(ChannelNorm):
    """Ioffe and Szegedy, "Batch normalization", 2015.

    Args:
        num_features: channels.
        eps: added to the variance.
        momentum: weight of a batch in the running statistics; None for their plain average.
        affine: learn a scale and a shift per channel.
        track_running_stats: keep running statistics; else eval uses batch statistics, too.
        device: where the parameters and statistics lie.
        dtype: of them.
        bias: learn the shift.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, ...) -> the same.

        Raises:
            ValueError: another number of dimensions or of channels.
        """
        self._check(input)
        momentum = self._count_batch() if self.training else 0.0
        known = self.track_running_stats or not self.training
        return F.batch_norm(
            input,
            self.running_mean if known else None,
            self.running_var if known else None,
            self.weight,
            self.bias,
            self.training or self.running_mean is None,
            momentum,
            self.eps,
        )

    def _count_batch(self) -> float:
        """Count this batch; its weight in the running statistics."""
        if self.num_batches_tracked is None or not self.track_running_stats:
            return 0.0
        self.num_batches_tracked.add_(1)
        if self.momentum is not None:
            return self.momentum
        return 1.0 / self.num_batches_tracked.item()  # type: ignore[no-any-return]


class BatchNorm1d(BatchNorm):
    """For (batch, channels) and (batch, channels, length)."""

    _dimensions = (2, 3)


class BatchNorm2d(BatchNorm):
    """For (batch, channels, height, width)."""

    _dimensions = (4,)


class BatchNorm3d(BatchNorm):
    """For (batch, channels, depth, height, width)."""

    _dimensions = (5,)


for _layer in (BatchNorm1d, BatchNorm2d, BatchNorm3d):
    _layer.__doc__ = f"{_layer.__doc__}\n\n    {BatchNorm.__doc__}"
del _layer
