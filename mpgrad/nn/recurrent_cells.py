"""One step of recurrent networks: RNNCell, LSTMCell, GRUCell, and its computation."""

from __future__ import annotations

import math
from typing import Any

from mpgrad.nn import functional as F
from mpgrad.nn import init
from mpgrad.nn.module import Module
from mpgrad.nn.parameter import Parameter
from mpgrad.ops.by_index.indexing import chunk
from mpgrad.ops.new_tensors.creation import empty, zeros
from mpgrad.recording.tensors.tensor import Tensor

# A step takes what the input gives, what the hidden state gives, and the states; it returns the new
# states, first of all the output.


def tanh_step(x: Tensor, h: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """``tanh(x + h)`` (Elman, "Finding structure in time", 1990)."""
    return (F.tanh(x + h),)


def relu_step(x: Tensor, h: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """``max(x + h, 0)``."""
    return (F.relu(x + h),)


def lstm_step(x: Tensor, h: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Input, forget, cell and output gate (Hochreiter and Schmidhuber, 1997; Gers et al., 2000)."""
    enter, forget, cell, leave = chunk(x + h, 4, -1)
    kept = F.sigmoid(forget) * states[1] + F.sigmoid(enter) * F.tanh(cell)
    return F.sigmoid(leave) * F.tanh(kept), kept


def gru_step(x: Tensor, h: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Reset gate, update gate and new values (Cho et al., 2014)."""
    (reset, update, new), (reset_h, update_h, new_h) = chunk(x, 3, -1), chunk(h, 3, -1)
    candidate = F.tanh(new + F.sigmoid(reset + reset_h) * new_h)
    share = F.sigmoid(update + update_h)
    return ((states[0] - candidate) * share + candidate,)


def fill_uniformly(module: Module, hidden_size: int) -> None:
    """All Parameters within ``1 / sqrt(hidden_size)``."""
    bound = 1 / math.sqrt(hidden_size) if hidden_size > 0 else 0
    for parameter in module.parameters():
        init.uniform_(parameter, -bound, bound)


class _RecurrentCell(Module):
    """One step.

    Args:
        input_size: features of the input.
        hidden_size: features of the state.
        bias: learn two biases, one for the input and one for the state.
        device: where the parameters lie.
        dtype: of them.
    """

    _gates = 1
    _states = 1
    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows, made = self._gates * hidden_size, {"device": device, "dtype": dtype}
        self.weight_ih = Parameter(empty((rows, input_size), **made))
        self.weight_hh = Parameter(empty((rows, hidden_size), **made))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(empty(rows, **made)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within ``1 / sqrt(hidden_size)``."""
        fill_uniformly(self, self.hidden_size)

    def _step(self, x: Tensor, h: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def _next(self, input: Tensor, states: tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
        """The states after ``input``.

        Raises:
            ValueError: a number of dimensions is neither 1 nor 2.
            RuntimeError: a length does not fit.
        """
        name = type(self).__name__
        if input.ndim not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {input.ndim}D instead")
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input has inconsistent input_size: got {input.shape[-1]} expected "
                f"{self.input_size}"
            )
        shape = (*input.shape[:-1], self.hidden_size)
        if states is None:
            start = zeros(shape, dtype=input.dtype, device=input.device)
            states = (start,) * self._states
        for state in states:
            if state.ndim not in (1, 2):
                raise ValueError(
                    f"{name}: Expected hidden to be 1D or 2D, got {state.ndim}D instead"
                )
            if tuple(state.shape) != shape:
                raise RuntimeError(
                    f"{name}: hidden has inconsistent shape: got {tuple(state.shape)} expected "
                    f"{shape}"
                )
        x = F.linear(input, self.weight_ih, self.bias_ih)
        return self._step(x, F.linear(states[0], self.weight_hh, self.bias_hh), states)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(_RecurrentCell):
    """``tanh`` or ``relu`` of what input and state give.

    Raises:
        RuntimeError: another ``nonlinearity``, when it is called.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """(batch, input_size), (batch, hidden_size) -> (batch, hidden_size), or without batch."""
        return self._next(input, None if hx is None else (hx,))[0]

    def _step(self, x: Tensor, h: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        return (tanh_step if self.nonlinearity == "tanh" else relu_step)(x, h, states)

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return text if self.nonlinearity == "tanh" else f"{text}, nonlinearity={self.nonlinearity}"


class LSTMCell(_RecurrentCell):
    """A step of long short-term memory."""

    _gates, _states = 4, 2

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> Any:
        """(batch, input_size), states (h, c) -> (h, c), each (batch, hidden_size)."""
        return self._next(input, hx)

    def _step(self, x: Tensor, h: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return lstm_step(x, h, states)


class GRUCell(_RecurrentCell):
    """A step of a gated recurrent unit."""

    _gates = 3

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """(batch, input_size), (batch, hidden_size) -> (batch, hidden_size), or without batch."""
        return self._next(input, None if hx is None else (hx,))[0]

    def _step(self, x: Tensor, h: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return gru_step(x, h, states)
