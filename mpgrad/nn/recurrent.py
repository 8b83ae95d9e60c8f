"""Recurrent networks over sequences: RNN, LSTM and GRU, of several layers and both directions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from mpgrad.nn import functional as F
from mpgrad.nn.module import Module
from mpgrad.nn.packed_sequences import PackedSequence
from mpgrad.nn.parameter import Parameter
from mpgrad.nn.recurrent_cells import fill_uniformly
from mpgrad.ops.by_index.indexing import index_select
from mpgrad.ops.neural.recurrent_layers import recurrent_layer
from mpgrad.ops.new_tensors.creation import empty, zeros
from mpgrad.ops.shapes.shape import cat, reshape, squeeze, stack, transpose, unsqueeze
from mpgrad.recording.tensors.tensor import Tensor


class _Recurrent(Module):
    """A network that reads a sequence.

    The products with the input are computed for all steps at once. Each direction of a layer is one
    Node: so several directions run in parallel, and the gradient of a weight is one product.

    Args:
        input_size: features of the input.
        hidden_size: features of each layer and direction.
        num_layers: each reads the output of the one before it.
        bias: add them.
        batch_first: sequences are (batch, length, features), not (length, batch, features).
        dropout: probability with which outputs of all layers but the last become zero in training.
        bidirectional: read the sequence backwards, too.
        proj_size: of an LSTM: features to which each output is mapped; 0: it is not.
        device: where the parameters lie.
        dtype: of them.

    Raises:
        ValueError: ``dropout`` is not a probability, there are no layers, or ``proj_size`` does not
            fit.
    """

    _gates = 1
    _states = 1
    #: That of ``recurrent_layer``.
    _kind = ""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if not 0 <= dropout <= 1:
            raise ValueError(
                "dropout should be a number in range [0, 1] representing the probability of an "
                f"element being zeroed, got {dropout}"
            )
        if min(input_size, hidden_size, num_layers) < 1:
            raise ValueError("input_size, hidden_size and num_layers must be greater than zero")
        if dropout and num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero "
                f"dropout expects num_layers greater than 1, but got dropout={dropout} and "
                f"num_layers={num_layers}",
                UserWarning,
                stacklevel=3,
            )
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, dropout
        self.bidirectional, self.proj_size = bidirectional, proj_size
        self._check_projection()
        for layer in range(num_layers):
            for ending in self._endings():
                for name, shape in self._shapes(layer).items():
                    made = empty(shape, device=device, dtype=dtype)
                    setattr(self, f"{name}_l{layer}{ending}", Parameter(made))
        self.reset_parameters()

    def _check_projection(self) -> None:
        if self.proj_size < 0 or self.proj_size >= self.hidden_size:
            raise ValueError(
                "proj_size should be a positive integer or zero to disable projections and smaller "
                f"than hidden_size, got {self.proj_size}"
            )
        if self.proj_size and self._states == 1:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")

    @property
    def _output_size(self) -> int:
        """Features of one direction's outputs."""
        return self.proj_size or self.hidden_size

    def _shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        """The Parameters of one direction of a layer, in PyTorch's order."""
        rows = self._gates * self.hidden_size
        columns = self._output_size * len(self._endings()) if layer else self.input_size
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, columns),
            "weight_hh": (rows, self._output_size),
        }
        shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if self.bias else {}
        return shapes | (
            {"weight_hr": (self.proj_size, self.hidden_size)} if self.proj_size else {}
        )

    def _endings(self) -> tuple[str, ...]:
        """The suffixes of the Parameters of each direction."""
        return ("", "_reverse") if self.bidirectional else ("",)

    def reset_parameters(self) -> None:
        """Uniform within ``1 / sqrt(hidden_size)``."""
        fill_uniformly(self, self.hidden_size)

    def flatten_parameters(self) -> None:
        """Nothing: parameters need not lie side by side here."""

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The Parameters of each layer and direction."""
        return [
            [getattr(self, f"{name}_l{layer}{ending}") for name in self._shapes(layer)]
            for layer in range(self.num_layers)
            for ending in self._endings()
        ]

    def _read(self, input: Any, start: tuple[Tensor, ...] | None) -> tuple[Any, tuple[Tensor, ...]]:
        """The outputs and the last states of all layers; of packed sequences, packed outputs.

        Raises:
            RuntimeError: a shape does not fit.
        """
        if isinstance(input, PackedSequence):
            return self._read_packed(input, start)
        self._check(input)
        batched = input.ndim == 3
        steps = transpose(input, 0, 1) if batched and self.batch_first else input
        steps = steps if batched else unsqueeze(steps, 1)
        if start is not None and not batched:
            start = tuple(unsqueeze(state, 1) for state in start)
        states = self._start(steps, steps.shape[1], start)
        length, batch = steps.shape[:2]
        flat, ends = self._layers(reshape(steps, (length * batch, -1)), states, [batch] * length)
        steps = reshape(flat, (length, batch, -1))
        if not batched:
            return squeeze(steps, 1), tuple(squeeze(end, 1) for end in ends)
        return (transpose(steps, 0, 1) if self.batch_first else steps), ends

    def _read_packed(
        self, input: PackedSequence, start: tuple[Tensor, ...] | None
    ) -> tuple[Any, tuple[Tensor, ...]]:
        data, sizes, order, back = input
        if start is not None and order is not None:
            start = tuple(index_select(state, 1, order) for state in start)
        counts = sizes.tolist()
        states = self._start(data, counts[0], start)
        outputs, ends = self._layers(data, states, counts)
        if back is not None:
            ends = tuple(index_select(end, 1, back) for end in ends)
        return PackedSequence(outputs, sizes, order, back), ends

    def _layers(
        self, steps: Tensor, states: tuple[Tensor, ...], sizes: Sequence[int]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The output of the last layer, and the last states of all layers.

        Args:
            steps: (rows of all steps, features).
            states: the first ones, (layers * directions, batch, features) each.
            sizes: the number of rows of each step.
        """
        last: list[tuple[Tensor, ...]] = []
        weights = self.all_weights
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(len(self._endings())):
                at = len(last)
                weight_ih, weight_hh, *others = weights[at]
                projection = others.pop() if self.proj_size else None
                bias_ih, bias_hh = others or (None, None)
                rows = F.linear(steps, weight_ih, bias_ih)
                output, ended = recurrent_layer(
                    self._kind, rows, weight_hh, bias_hh, projection,
                    [state[at] for state in states], sizes, backwards=direction == 1,
                )  # fmt: skip
                outputs.append(output)
                last.append(ended)
            steps = cat(outputs, -1) if len(outputs) > 1 else outputs[0]
            if self.dropout and layer < self.num_layers - 1:
                steps = F.dropout(steps, self.dropout, self.training)
        return steps, tuple(stack([ended[k] for ended in last]) for k in range(self._states))

    def _check(self, input: Tensor) -> None:
        if input.ndim not in (2, 3):
            raise ValueError(
                f"{type(self).__name__}: Expected input to be 2D or 3D, got {input.ndim}D instead"
            )
        if input.dtype != self.all_weights[0][0].dtype:
            raise ValueError(
                f"input must have the type {self.all_weights[0][0].dtype}, got type {input.dtype}"
            )
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                "input.size(-1) must be equal to input_size. Expected "
                f"{self.input_size}, got {input.shape[-1]}"
            )
        if input.shape[1 if input.ndim == 3 and self.batch_first else 0] == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")

    def _start(
        self, steps: Tensor, batch: int, start: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, ...]:
        """The first states, each (layers * directions, batch, features)."""
        count = self.num_layers * len(self._endings())
        sizes = (self._output_size, self.hidden_size)[: self._states]
        shapes = [(count, batch, size) for size in sizes]
        if start is None:
            return tuple(zeros(s, dtype=steps.dtype, device=steps.device) for s in shapes)
        for state, shape in zip(start, shapes, strict=True):
            if tuple(state.shape) != shape:
                raise RuntimeError(f"Expected hidden size {shape}, got {list(state.shape)}")
        return start

    def extra_repr(self) -> str:
        parts = [f"{self.input_size}, {self.hidden_size}"]
        for name, usual in (
            ("num_layers", 1),
            ("bias", True),
            ("batch_first", False),
            ("dropout", 0),
            ("bidirectional", False),
            ("proj_size", 0),
        ):
            if getattr(self, name) != usual:
                parts.append(f"{name}={getattr(self, name)}")
        return ", ".join(parts)


class RNN(_Recurrent):
    """An Elman network: ``tanh`` or ``relu`` of what input and state give."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(
                f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'."
            )
        super().__init__(input_size, hidden_size, num_layers, *args, **kwargs)
        self.nonlinearity = nonlinearity

    @property
    def _kind(self) -> str:  # type: ignore[override]
        return f"rnn_{self.nonlinearity}"

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(length, batch, input_size) -> outputs (length, batch, directions * hidden), last state.

        The state is (layers * directions, batch, hidden_size); sequences may be without batch.
        """
        outputs, (state,) = self._read(input, None if hx is None else (hx,))
        return outputs, state


class LSTM(_Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997; with a ``proj_size`` Sak, Senior
    and Beaufays, 2014)."""

    _gates, _states, _kind = 4, 2, "lstm"

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Any]:
        """As of :class:`RNN`, with states (h, c)."""
        return self._read(input, hx)


class GRU(_Recurrent):
    """Gated recurrent units (Cho et al., 2014)."""

    _gates, _kind = 3, "gru"

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As of :class:`RNN`."""
        outputs, (state,) = self._read(input, None if hx is None else (hx,))
        return outputs, state
