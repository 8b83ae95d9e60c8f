"""SyncBatchNorm: batch normalisation with the mean and the variance of the batches of all ranks."""

from __future__ import annotations

from typing import Any

from mpgrad.autograd.function import Function
from mpgrad.distributed.process_group import ProcessGroup, get_world_size, group_of, is_initialized
from mpgrad.distributed.reductions import all_reduce
from mpgrad.nn.batch_norm import BatchNorm
from mpgrad.nn.module import Module
from mpgrad.ops.new_tensors.creation import full
from mpgrad.ops.shapes.shape import cat
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.tensor import Tensor


class SyncBatchNorm(BatchNorm):
    """While it trains in a process group, the statistics are those of all ranks' batches together.

    Without a group, and in eval, it is BatchNorm. All ranks have to call it equally often.

    Args:
        num_features: channels.
        eps: added to the variance.
        momentum: weight of a batch in the running statistics; None for their plain average.
        affine: learn a scale and a shift per channel.
        track_running_stats: keep running statistics; else eval uses batch statistics, too.
        process_group: of ranks; the world by default.
        device: where the parameters and statistics lie.
        dtype: of them.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: ProcessGroup | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.process_group = process_group

    @classmethod
    def convert_sync_batchnorm(
        cls, module: Module, process_group: ProcessGroup | None = None
    ) -> Module:
        """``module`` with a SyncBatchNorm, of the same parameters, in place of each BatchNorm.

        Args:
            module: its BatchNorms are replaced; if it is one itself, it stays as it was.
            process_group: of the new layers.
        """
        if isinstance(module, BatchNorm):
            return cls._like(module, process_group)
        for name, child in module.named_children():
            setattr(module, name, cls.convert_sync_batchnorm(child, process_group))
        return module

    @classmethod
    def _like(cls, old: BatchNorm, process_group: ProcessGroup | None) -> SyncBatchNorm:
        settings = (old.num_features, old.eps, old.momentum, old.affine, old.track_running_stats)
        new = cls(*settings, process_group)
        new.weight, new.bias = old.weight, old.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(new, name, getattr(old, name))
        return new.train(old.training)

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, ...) -> the same; the batches of the ranks may have different lengths.

        Raises:
            ValueError: fewer than two dimensions, another number of channels, or, while training,
                a single value per channel in all batches.
        """
        if self.training and is_initialized() and get_world_size(self.process_group) > 1:
            return self._with_all_ranks(input)
        return super().forward(input)

    def _check(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least 2D input (got {input.ndim}D input)")
        self._check_channels(input)

    def _with_all_ranks(self, input: Tensor) -> Tensor:
        self._check(input)
        momentum, group = self._count_batch(), group_of(self.process_group)
        others = (0, *range(2, input.ndim))
        shape = (-1, *(1,) * (input.ndim - 2))
        count = full(
            (1,), input.numel() // self.num_features, dtype=input.dtype, device=input.device
        )
        sums = _AllReduce.apply(cat([input.sum(others), count]), group)
        values = sums[-1].item()
        if values < 2:
            raise ValueError("Expected more than 1 value per channel when training, on all ranks")
        mean = sums[:-1] / values
        centred = input - mean.reshape(shape)
        variance = _AllReduce.apply(centred.square().sum(others), group) / values
        learns = self.track_running_stats
        if learns and self.running_mean is not None and self.running_var is not None:
            with no_grad():
                self.running_mean.lerp_(mean, momentum)
                self.running_var.lerp_(variance * (values / (values - 1)), momentum)
        scale = (variance + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        out = centred * scale.reshape(shape)
        return out if self.bias is None else out + self.bias.reshape(shape)


class _AllReduce(Function):
    """The sum over the ranks. Each rank's loss depends on it, so its gradient is their sum, too."""

    run_on = "client"

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        total = tensor.clone()
        all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _AllReduce.apply(grad, ctx.group), None
