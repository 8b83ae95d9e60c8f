"""One direction of a recurrent layer as one operator: an Elman network, an LSTM or a GRU.

What a step keeps for its derivative is no output that has one. A second derivative sees how it
depends on the inputs, since it computes it again from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import Operator, operator
from mpgrad.recording.tensors.tensor import Tensor


def _with_one_state(kind: str) -> Operator:
    return operator(
        kind,
        lambda xp, rows, weight, bias, projection, state, *, sizes, backwards: xp.recurrence(
            kind, rows, weight, bias, projection, (state,), sizes=sizes, backwards=backwards
        ),
        joint=lambda xp, grads, results, rows, weight, bias, projection, state, sizes, backwards,
        needs: xp.recurrence_grads(
            kind, grads, results, rows, weight, bias, projection, (state,),
            sizes=sizes, backwards=backwards, needs=needs,
        ),
        outputs=2,
    )  # fmt: skip


_LAYERS = {kind: _with_one_state(kind) for kind in ("rnn_tanh", "rnn_relu", "gru")}
_LAYERS["lstm"] = operator(
    "lstm",
    lambda xp, rows, weight, bias, projection, state, cell, *, sizes, backwards: xp.recurrence(
        "lstm", rows, weight, bias, projection, (state, cell), sizes=sizes, backwards=backwards
    ),
    joint=lambda xp, grads, results, rows, weight, bias, projection, state, cell, sizes, backwards,
    needs: xp.recurrence_grads(
        "lstm", grads, results, rows, weight, bias, projection, (state, cell),
        sizes=sizes, backwards=backwards, needs=needs,
    ),
    outputs=3,
)  # fmt: skip


def recurrent_layer(
    kind: str,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    projection: Tensor | None,
    states: Sequence[Tensor],
    sizes: Sequence[int],
    backwards: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The outputs of all steps, and the last states.

    Args:
        kind: "rnn_tanh", "rnn_relu", "lstm" or "gru".
        rows: (rows of all steps, gates): what the input gives.
        weight: (gates, output features), of the output before.
        bias: (gates,) or None.
        projection: of an LSTM, (output features, hidden features) or None.
        states: before the first step, (sequences, features) each.
        sizes: the number of sequences of each step, none more than the first.
        backwards: the last step comes first.
    """
    inputs = (rows, weight, bias, projection, *states)
    found = call(_LAYERS[kind], *inputs, sizes=tuple(sizes), backwards=backwards)
    return found[0], tuple(found[1 : 1 + len(states)])
