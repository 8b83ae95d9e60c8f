"""Recurrent layers: all steps of one direction, and their gradients, on any array namespace.

The rows of all steps stand one after another: those of step t belong to the first ``sizes[t]``
sequences, of which the longest come first. Each step is one small product; the gradient of the
weight is one product of the rows of all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

#: Arrays of one step, or of all: the output, then the other states of a cell.
States = Sequence[Any]


class Cell(NamedTuple):
    """One step of a network.

    Attributes:
        step: ``(xp, x, h, states)``, where ``x`` comes from the input and ``h`` from the output
            before; gives the new states, and what ``slopes`` needs besides them (or None).
        slopes: ``(xp, grads, kept, before, after)``, with the gradients of the new states and the
            states around the step; gives the gradients of ``x``, of ``h``, and of the states before
            as far as they do not come through ``h`` (None: not at all).
        output: ``(xp, kept, others)``: an LSTM's output before its projection.
    """

    step: Callable[[Any, Any, Any, States], tuple[States, Any]]
    slopes: Callable[[Any, States, Any, States, States], tuple[Any, Any, States]]
    output: Callable[[Any, Any, States], Any] | None = None


# ---------------------------------------------------------------------------- cells


def _parts(x: Any, count: int) -> list[Any]:
    """``x`` cut into equal parts along its columns."""
    width = x.shape[1] // count
    return [x[:, k * width : (k + 1) * width] for k in range(count)]


def _tanh_step(xp: Any, x: Any, h: Any, states: States) -> tuple[States, Any]:
    return (xp.tanh(xp.add(x, h)),), None


def _tanh_slopes(
    xp: Any, grads: States, kept: Any, before: States, after: States
) -> tuple[Any, Any, States]:
    slope = xp.multiply(grads[0], xp.subtract(1.0, xp.square(after[0])))
    return slope, slope, (None,)


def _relu_step(xp: Any, x: Any, h: Any, states: States) -> tuple[States, Any]:
    return (xp.maximum(xp.add(x, h), 0.0),), None


def _relu_slopes(
    xp: Any, grads: States, kept: Any, before: States, after: States
) -> tuple[Any, Any, States]:
    slope = xp.where(xp.greater(after[0], 0.0), grads[0], 0.0)
    return slope, slope, (None,)


def _lstm_step(xp: Any, x: Any, h: Any, states: States) -> tuple[States, Any]:
    """Input, forget, cell and output gate (Hochreiter and Schmidhuber, 1997; Gers et al., 2000)."""
    enter, forget, cell, leave = _parts(xp.add(x, h), 4)
    enter, forget, leave = xp.sigmoid(enter), xp.sigmoid(forget), xp.sigmoid(leave)
    cell = xp.tanh(cell)
    inside = xp.add(xp.multiply(forget, states[1]), xp.multiply(enter, cell))
    gates = xp.concatenate([enter, forget, cell, leave], 1)
    return (xp.multiply(leave, xp.tanh(inside)), inside), gates


def _lstm_slopes(
    xp: Any, grads: States, kept: Any, before: States, after: States
) -> tuple[Any, Any, States]:
    enter, forget, cell, leave = _parts(kept, 4)
    seen, grad = xp.tanh(after[1]), grads[0]
    through = xp.multiply(xp.multiply(grad, leave), xp.subtract(1.0, xp.square(seen)))
    inside = xp.add(grads[1], through)
    slope = xp.concatenate(
        [
            _through_sigmoid(xp, xp.multiply(inside, cell), enter),
            _through_sigmoid(xp, xp.multiply(inside, before[1]), forget),
            xp.multiply(xp.multiply(inside, enter), xp.subtract(1.0, xp.square(cell))),
            _through_sigmoid(xp, xp.multiply(grad, seen), leave),
        ],
        1,
    )
    return slope, slope, (None, xp.multiply(inside, forget))


def _lstm_output(xp: Any, kept: Any, others: States) -> Any:
    return xp.multiply(_parts(kept, 4)[3], xp.tanh(others[0]))


def _through_sigmoid(xp: Any, grad: Any, share: Any) -> Any:
    return xp.multiply(grad, xp.subtract(share, xp.square(share)))


def _gru_step(xp: Any, x: Any, h: Any, states: States) -> tuple[States, Any]:
    """Reset gate, update gate and new values (Cho et al., 2014)."""
    (reset, update, new), (reset_h, update_h, new_h) = _parts(x, 3), _parts(h, 3)
    reset, update = xp.sigmoid(xp.add(reset, reset_h)), xp.sigmoid(xp.add(update, update_h))
    new = xp.tanh(xp.add(new, xp.multiply(reset, new_h)))
    output = xp.add(xp.multiply(xp.subtract(states[0], new), update), new)
    return (output,), xp.concatenate([reset, update, new, new_h], 1)


def _gru_slopes(
    xp: Any, grads: States, kept: Any, before: States, after: States
) -> tuple[Any, Any, States]:
    reset, update, new, new_h = _parts(kept, 4)
    stays = xp.multiply(grads[0], update)
    inner = xp.multiply(xp.subtract(grads[0], stays), xp.subtract(1.0, xp.square(new)))
    both = [
        _through_sigmoid(xp, xp.multiply(inner, new_h), reset),
        _through_sigmoid(xp, xp.multiply(grads[0], xp.subtract(before[0], new)), update),
    ]
    of_x = xp.concatenate([*both, inner], 1)
    return of_x, xp.concatenate([*both, xp.multiply(inner, reset)], 1), (stays,)


CELLS = {
    "rnn_tanh": Cell(_tanh_step, _tanh_slopes),
    "rnn_relu": Cell(_relu_step, _relu_slopes),
    "lstm": Cell(_lstm_step, _lstm_slopes, _lstm_output),
    "gru": Cell(_gru_step, _gru_slopes),
}


# ---------------------------------------------------------------------------- all steps


def recurrence(
    xp: Any,
    kind: str,
    rows: Any,
    weight: Any,
    bias: Any,
    projection: Any,
    states: States,
    *,
    sizes: Sequence[int],
    backwards: bool,
) -> tuple[Any, ...]:
    """All steps of one direction of a layer.

    Args:
        kind: one of ``CELLS``.
        rows: (rows of all steps, gates): what the input gives.
        weight: (gates, output features), of the output before.
        bias: (gates,) or None.
        projection: (output features, hidden features) or None.
        states: before the first step, (sequences, features) each.
        sizes: the number of rows of each step.
        backwards: the last step comes first.

    Returns:
        The outputs of all steps; the last states; the other states and what the cell keeps, of all
        steps.
    """
    cell, transposed = CELLS[kind], xp.transpose(weight, (1, 0))
    now = list(states)
    found: list[list[Any]] = [[] for _ in sizes]
    for at, part in _steps(sizes, backwards):
        before = [_first(state, sizes[at]) for state in now]
        product = xp.matmul(before[0], transposed)
        product = product if bias is None else xp.add(product, bias)
        (output, *others), kept = cell.step(xp, rows[part], product, before)
        if projection is not None:
            output = xp.matmul(output, xp.transpose(projection, (1, 0)))
        now = [_replaced(xp, *pair) for pair in zip(now, (output, *others), strict=True)]
        found[at] = [output, *others] if kept is None else [output, *others, kept]
    outputs, *rest = (xp.concatenate(column, 0) for column in zip(*found, strict=True))
    return (outputs, *now, *rest)


def recurrence_grads(
    xp: Any,
    kind: str,
    grads: States,
    results: Sequence[Any],
    rows: Any,
    weight: Any,
    bias: Any,
    projection: Any,
    states: States,
    *,
    sizes: Sequence[int],
    backwards: bool,
    needs: Sequence[bool],
) -> tuple[Any, ...]:
    """The gradients of rows, weight, bias, projection and states; None where ``needs`` is False.

    Args:
        grads: of the outputs and of the last states.
        results: of :func:`recurrence` of the other arguments; for these see there.
    """
    cell, count = CELLS[kind], len(states)
    after = [results[0], *results[1 + count : 2 * count]]
    kept = results[2 * count] if len(results) > 2 * count else None
    before = [_before(xp, *pair, sizes, backwards) for pair in zip(states, after, strict=True)]
    now = list(grads[1 : 1 + count])
    of_rows, of_products, of_outputs = ([None] * len(sizes) for _ in range(3))
    for at, part in reversed(_steps(sizes, backwards)):
        mine = [_first(grad, sizes[at]) for grad in now]
        mine[0] = of_outputs[at] = xp.add(mine[0], grads[0][part])
        if projection is not None:
            mine[0] = xp.matmul(mine[0], projection)
        of_rows[at], of_products[at], direct = cell.slopes(
            xp,
            mine,
            None if kept is None else kept[part],
            [x[part] for x in before],
            [x[part] for x in after],
        )
        through = xp.matmul(of_products[at], weight)
        first = through if direct[0] is None else xp.add(through, direct[0])
        now = [_replaced(xp, *pair) for pair in zip(now, (first, *direct[1:]), strict=True)]
    of_input = xp.concatenate(of_rows, 0)
    products = of_input if of_products[0] is of_rows[0] else xp.concatenate(of_products, 0)
    across = xp.transpose(products, (1, 0))
    found = [
        of_input if needs[0] else None,
        xp.matmul(across, before[0]) if needs[1] else None,
        xp.sum(products, 0) if needs[2] else None,
        None,
    ]
    if needs[3]:
        assert cell.output is not None
        across = xp.transpose(xp.concatenate(of_outputs, 0), (1, 0))
        found[3] = xp.matmul(across, cell.output(xp, kept, after[1:]))
    found += [grad if need else None for grad, need in zip(now, needs[4:], strict=True)]
    return tuple(found)


def _steps(sizes: Sequence[int], backwards: bool) -> list[tuple[int, slice]]:
    """The number of each step and its rows, in the order in which they are made."""
    found, start = [], 0
    for at, size in enumerate(sizes):
        found.append((at, slice(start, start + size)))
        start += size
    return found[::-1] if backwards else found


def _first(state: Any, size: int) -> Any:
    return state if state.shape[0] == size else state[:size]


def _replaced(xp: Any, state: Any, first: Any) -> Any:
    """``state`` with its first rows replaced: the other sequences have ended, or begin later."""
    size = first.shape[0]
    return first if state.shape[0] == size else xp.concatenate([first, state[size:]], 0)


def _before(xp: Any, start: Any, after: Any, sizes: Sequence[int], backwards: bool) -> Any:
    """The state before each step, with the rows of that step."""
    found: list[Any] = [None] * len(sizes)
    state = start
    for at, part in _steps(sizes, backwards):
        found[at] = _first(state, sizes[at])
        state = _replaced(xp, state, after[part])
    return xp.concatenate(found, 0)
