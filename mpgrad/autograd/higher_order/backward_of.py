"""backward_of(operator): an operator's derivative formula as an operator, for ``create_graph``.

The formulas of ``mul`` take gradients and saved values, and return gradients. So they are an
operator themselves, ``mul_backward``. Its derivative is not written anywhere: the formula runs
again on Tensors, which records it, and the recording is differentiated. The result is an operator
like any other, which workers can run and which has a derivative in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from mpgrad.arrays.cuda.device_arrays import is_array
from mpgrad.autograd.backward import grad
from mpgrad.autograd.running import engine_slot
from mpgrad.autograd.running.validate_outputs import validate_output
from mpgrad.base.device import Device
from mpgrad.errors import ProtocolError
from mpgrad.ops import differentiable
from mpgrad.recording.graph.grad_modes import enable_grad
from mpgrad.recording.graph.node import InputMetadata
from mpgrad.recording.graph.registry import OPERATORS, Operator
from mpgrad.recording.tensors.hooks_in_force import HOOKS
from mpgrad.recording.tensors.tensor import Tensor

#: (name, number of tensors; None for a single one, not a tuple).
Layout: TypeAlias = tuple[tuple[str, int | None], ...]

_SUFFIX = "_backward"
#: Such an operator returns as many gradients as are needed: the number of outputs is not fixed.
_ANY_NUMBER = 1 << 30


def _sum(xp: Any, *parts: Any) -> Any:
    total = xp.add(parts[0], parts[1])
    for part in parts[2:]:
        total = xp.add(total, part)
    return total


#: The engine's sum of several gradients of one input, from left to right.
SUM_GRADIENTS = Operator("sum_gradients", _sum, {"parts": lambda xp, grad: grad}, None, 1)

#: By name, the operators that only the engine makes and calls.
_derived = {SUM_GRADIENTS.name: SUM_GRADIENTS}


def backward_of(base: Operator) -> Operator:
    """The operator whose forward is the derivative formula of ``base``.

    Its inputs are the gradients of the outputs of ``base``, then its saved values in the order of
    ``layout``. Its outputs are the gradients that are ``wanted``.
    """
    name = base.name + _SUFFIX
    found = _derived.get(name)
    if found is None:
        found = _derived[name] = Operator(
            name, _forward, {}, _derivative, _ANY_NUMBER, wirtinger=True
        )
    return found


def find_operator(name: str) -> Operator:
    """The operator called ``name``; a derived one is made if this process does not have it yet.

    Raises:
        ProtocolError: there is no such operator.
    """
    found = OPERATORS.get(name) or _derived.get(name)
    if found is not None:
        return found
    if not name.endswith(_SUFFIX):
        raise ProtocolError(f"unknown operator {name!r}")
    return backward_of(find_operator(name.removesuffix(_SUFFIX)))


def _forward(
    xp: Any,
    *inputs: Any,
    base: str,
    gradients: int,
    layout: Layout,
    plain: dict[str, Any],
    wanted: tuple[bool, ...],
    results: tuple[tuple[tuple[int, ...], str, str], ...],
) -> tuple[Any, ...]:
    """Run the formula on arrays.

    Args:
        xp: the array namespace.
        inputs: the gradients, then the saved values.
        base: the name of the operator whose formula it is.
        gradients: the number of gradients among ``inputs``.
        layout: the names of the others.
        plain: shapes, dtypes, attributes and scalars that the formula uses.
        wanted: the gradients to compute.
        results: (shape, dtype, device) of each of those.
    """
    rule = find_operator(base)
    given = rule.backward(xp, inputs[:gradients], _named(inputs[gradients:], layout, plain), wanted)
    found = [value for value, wants in zip(given, wanted, strict=True) if wants]
    expected = [
        InputMetadata(shape, np.dtype(dtype), Device(device)) for shape, dtype, device in results
    ]
    return tuple(
        validate_output(str(rule.node_name), index, value, meta, xp)
        for index, (value, meta) in enumerate(zip(found, expected, strict=True))
    )


def _derivative(
    xp: Any,
    grads: Sequence[Any],
    inputs: Sequence[Any],
    needs: Sequence[bool],
    base: str,
    gradients: int,
    layout: Layout,
    plain: dict[str, Any],
    wanted: tuple[bool, ...],
    results: tuple[tuple[tuple[int, ...], str, str], ...],
) -> list[Any]:
    """Record the formula and differentiate the recording.

    With arrays the recording is dropped. With Tensors (a third derivative) it is kept and is itself
    differentiable. Each input is separate, even if two are the same tensor.
    """
    keeps = xp is differentiable
    with enable_grad(), engine_slot.locally(), HOOKS.only_if(keeps):
        tensors = [_own(value, need, keeps) for value, need in zip(inputs, needs, strict=True)]
        saved = _named(tensors[gradients:], layout, plain)
        given = find_operator(base).backward(differentiable, tensors[:gradients], saved, wanted)
        found = (value for value, wants in zip(given, wanted, strict=True) if wants)
        ends = [
            (_fitted(value, shape, np.dtype(dtype)), seed if keeps else Tensor(seed))
            for value, seed, (shape, dtype, _) in zip(found, grads, results, strict=True)
            if isinstance(value, Tensor) and value.requires_grad
        ]
        sources = [tensor for tensor, need in zip(tensors, needs, strict=True) if need]
        if not ends:
            return [None] * len(inputs)
        outputs, seeds = zip(*ends, strict=True)
        derived = iter(
            grad(outputs, sources, seeds, create_graph=keeps, allow_unused=True),
        )
    return [_unwrapped(next(derived), keeps) if need else None for need in needs]


def _named(values: Sequence[Any], layout: Layout, plain: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a formula by name."""
    named = dict(plain)
    rest: Iterator[Any] = iter(values)
    for name, count in layout:
        named[name] = next(rest) if count is None else tuple(next(rest) for _ in range(count))
    return named


def _own(value: Any, need: bool, keeps: bool) -> Any:
    """``value`` as a tensor that is shared with no other input."""
    if isinstance(value, Tensor):
        if not need:
            return value
        # A derivative of a derivative may need a gradient that its own caller does not.
        if not value.requires_grad:
            return Tensor(value._array, requires_grad=True)
        return differentiable.reshape(value, value.shape)
    if is_array(value):
        return Tensor(value, requires_grad=need and not keeps)
    return value


def _fitted(value: Tensor, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
    """As ``validate_output``, recorded."""
    value = differentiable.sum_to(value, shape)
    return value if value.dtype == dtype else differentiable.astype(value, dtype)


def _unwrapped(value: Tensor | None, keeps: bool) -> Any:
    return value if keeps or value is None else value._array
