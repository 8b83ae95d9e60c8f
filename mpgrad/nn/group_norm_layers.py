"""GroupNorm and InstanceNorm: standardise the channels of each sample, in groups or one by one."""

from __future__ import annotations

import warnings
from typing import Any

from mpgrad.nn import functional as F
from mpgrad.nn import init
from mpgrad.nn.batch_norm import ChannelNorm
from mpgrad.nn.module import Module
from mpgrad.nn.parameter import Parameter
from mpgrad.ops.new_tensors.creation import empty
from mpgrad.recording.tensors.tensor import Tensor


class GroupNorm(Module):
    """Wu and He, "Group normalization", 2018.

    Args:
        num_groups: how many groups the channels are divided into.
        num_channels: channels.
        eps: added to the variance.
        affine: learn a scale for each channel (and a shift, with ``bias``).
        device: where the parameters lie.
        dtype: of them.
        bias: learn a shift.

    Raises:
        ValueError: the channels cannot be divided so.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(
                f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})"
            )
        self.num_groups, self.num_channels = num_groups, num_channels
        self.eps, self.affine = eps, affine
        for name, learned in (("weight", affine), ("bias", affine and bias)):
            values = empty(num_channels, dtype=dtype, device=device) if learned else None
            self.register_parameter(name, None if values is None else Parameter(values))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale 1, shift 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """(batch, num_channels, ...) -> the same."""
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class _InstanceNorm(ChannelNorm):
    """Ulyanov, Vedaldi and Lempitsky, "Instance normalization", 2016.

    The arguments are those of batch normalisation, without scale, shift and statistics by default.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias
        )

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, ...), or without the batch -> the same.

        Raises:
            ValueError: another number of dimensions, or of channels where there is a scale.
        """
        batched = input.unsqueeze(0) if input.ndim == self._dimensions[0] - 1 else input
        self._check(batched)
        out = F.instance_norm(
            batched,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            self.momentum if self.momentum is not None else 0.0,
            self.eps,
        )
        return out if batched is input else out.squeeze(0)

    def _check_channels(self, input: Tensor) -> None:
        if self.affine or self.track_running_stats:
            super()._check_channels(input)
        elif input.shape[1] != self.num_features:
            warnings.warn(
                f"input's size at dim=1 does not match num_features ({self.num_features}), which is"
                " not used because affine=False",
                UserWarning,
                stacklevel=4,
            )


class InstanceNorm1d(_InstanceNorm):
    """For (batch, channels, length)."""

    _dimensions = (3,)


class InstanceNorm2d(_InstanceNorm):
    """For (batch, channels, height, width)."""

    _dimensions = (4,)


class InstanceNorm3d(_InstanceNorm):
    """For (batch, channels, depth, height, width)."""

    _dimensions = (5,)
