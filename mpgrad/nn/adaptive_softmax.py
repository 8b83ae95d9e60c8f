"""AdaptiveLogSoftmaxWithLoss: a softmax over many classes, of which few are frequent."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from mpgrad.nn import functional as F
from mpgrad.nn.containers import ModuleList, Sequential
from mpgrad.nn.layers import Linear
from mpgrad.nn.module import Module
from mpgrad.ops.elementwise.comparison import logical_and
from mpgrad.ops.reductions.ordering import argsort
from mpgrad.ops.shapes.shape import cat
from mpgrad.recording.tensors.tensor import Tensor


class OutputAndLoss(NamedTuple):
    """What the layer returns."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Grave et al., "Efficient softmax approximation for GPUs", 2017.

    The frequent classes, those before the first cutoff, and the clusters of the others are the
    classes of one softmax; each cluster has its own for its classes, of fewer features.

    Args:
        in_features: of the input.
        n_classes: sorted by frequency, the most frequent first.
        cutoffs: the first class of each cluster.
        div_value: by which the features of each cluster are divided, once more than those before.
        head_bias: whether the first softmax has a bias.
        device: where the parameters lie.
        dtype: of the parameters.

    Raises:
        ValueError: the cutoffs are not increasing numbers from 1 to ``n_classes - 1``.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        cutoffs = list(cutoffs)
        if not cutoffs:
            raise ValueError("cutoffs should be a sequence of length larger than 0")
        if (
            cutoffs != sorted(set(cutoffs))
            or not 0 < cutoffs[0] <= cutoffs[-1] < n_classes
            or any(int(cutoff) != cutoff for cutoff in cutoffs)
        ):
            raise ValueError(
                "cutoffs should be a sequence of unique, positive integers sorted in an increasing "
                "order, where each value is between 1 and n_classes-1"
            )
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_features, self.n_classes = in_features, n_classes
        self.cutoffs = [*cutoffs, n_classes]
        self.div_value, self.head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = cutoffs[0], len(cutoffs)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, bias=head_bias, **made)
        self.tail = ModuleList()
        for at, (first, end) in enumerate(itertools.pairwise(self.cutoffs)):
            features = int(in_features // div_value ** (at + 1))
            inner = Linear(in_features, features, bias=False, **made)
            self.tail.append(Sequential(inner, Linear(features, end - first, bias=False, **made)))

    def reset_parameters(self) -> None:
        """Draw the weights of all softmaxes."""
        for layer in self.modules():
            if isinstance(layer, Linear):
                layer.reset_parameters()

    def forward(self, input: Tensor, target: Tensor) -> OutputAndLoss:
        """The log-probabilities of the targets, and their mean with a minus.

        Args:
            input: (batch, in_features) or (in_features,).
            target: (batch,) or without dimensions: classes.

        Raises:
            RuntimeError: the shapes do not fit, or a target is no class.
        """
        self._check(input, target)
        is_batched = target.ndim > 0
        rows = input if is_batched else input.unsqueeze(0)
        classes = target if is_batched else target.unsqueeze(0)
        head = F.log_softmax(self.head(rows), 1)
        chosen, places = [], []
        for at, (first, end) in enumerate(itertools.pairwise([0, *self.cutoffs])):
            here = logical_and(classes >= first, classes < end).nonzero().squeeze(1)
            if not here.numel():
                continue
            own = classes[here] - first
            if at == 0:
                found = head[here, own]
            else:
                inside = F.log_softmax(self.tail[at - 1](rows[here]), 1)
                found = head[here, self.shortlist_size + at - 1] + inside.gather(
                    1, own.unsqueeze(1)
                ).squeeze(1)
            chosen.append(found)
            places.append(here)
        output = cat(chosen)[argsort(cat(places))]
        return OutputAndLoss(output if is_batched else output.squeeze(0), -output.mean())

    def _check(self, input: Tensor, target: Tensor) -> None:
        if target.ndim > 1:
            raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
        if target.ndim and input.shape[0] != target.shape[0]:
            raise RuntimeError("Input and target should have the same size in the batch dimension.")
        if input.ndim != target.ndim + 1:
            raise RuntimeError(
                f"{target.ndim}D target tensor expects {target.ndim + 1}D input tensors, but found "
                f"inputs with size {input.shape}"
            )
        low, high = (int(found.item()) for found in (target.min(), target.max()))
        if low < 0 or high >= self.n_classes:
            raise RuntimeError(
                f"Target values should be in [0, {self.n_classes - 1}], but values in range "
                f"[{low}, {high}] were found. "
            )

    def log_prob(self, input: Tensor) -> Tensor:
        """The log-probabilities of all classes: (batch, in_features) -> (batch, n_classes)."""
        head = F.log_softmax(self.head(input), 1)
        parts = [head[:, : self.shortlist_size]]
        for at, cluster in enumerate(self.tail):
            whole = head[:, self.shortlist_size + at].unsqueeze(1)
            parts.append(F.log_softmax(cluster(input), 1) + whole)
        return cat(parts, 1)

    def predict(self, input: Tensor) -> Tensor:
        """The most probable class of each row: (batch, in_features) -> (batch,).

        Clusters are computed for rows only whose first softmax chooses one.
        """
        found: Tensor = self.head(input).argmax(1)
        rows = (found >= self.shortlist_size).nonzero().squeeze(1)
        if rows.numel():
            found[rows] = self.log_prob(input[rows]).argmax(1)
        return found
