"""How a Tensor prints: as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import numpy as np

from mpgrad.base.dtype import DEFAULTS, DTYPES
from mpgrad.base.html_text import preformatted
from mpgrad.devices.device_arrays import on_host
from mpgrad.tensors.tensor import Tensor

#: PyTorch's defaults: with more elements the middle is omitted; elements kept at each end.
_THRESHOLD, _EDGE_ITEMS, _DIGITS, _LINE_WIDTH = 1000, 3, 4, 80


def represent(tensor: Tensor) -> str:
    """``tensor([1., 2.], requires_grad=True)``."""
    array = np.asarray(on_host(tensor._array))
    prefix = f"{_name(tensor)}("
    if array.size:
        text = np.array2string(
            array,
            max_line_width=_LINE_WIDTH,
            separator=", ",
            prefix=prefix,
            threshold=_THRESHOLD,
            edgeitems=_EDGE_ITEMS,
            formatter={
                "float_kind": _float_format(array),
                "complex_kind": _complex_format(array),
            },
        )
    else:
        text = "[]" if array.shape == (0,) else f"[], size={array.shape}"
    notes = [f"device='{tensor.device}'"] if tensor.device.type != "cpu" else []
    if array.dtype not in DEFAULTS:  # a reader expects the default dtypes
        notes.append(f"dtype={DTYPES[array.dtype]}")
    history = _history(tensor)
    if history:
        notes.append(history)
    return prefix + ", ".join([text, *notes]) + ")"


def represent_html(tensor: Tensor) -> str:
    """For notebooks: what it is, above its values."""
    facts = [
        str(DTYPES[tensor._array.dtype]),
        f"shape {tuple(tensor.shape)}",
        str(tensor.device),
        *filter(None, [_history(tensor)]),
    ]
    return f"<p><b>{_name(tensor)}</b> {escape(', '.join(facts))}</p>{preformatted(repr(tensor))}"


def _history(tensor: Tensor) -> str:
    try:
        node = tensor.grad_fn
    except RuntimeError:  # a view whose history cannot be updated
        return "grad_fn=<Invalid>"
    if node is not None:
        return f"grad_fn=<{type(node).__name__}>"
    return "requires_grad=True" if tensor.requires_grad else ""


def attributes(tensor: Tensor) -> list[str]:
    """The result of ``dir(tensor)``: all attributes without those that only warn."""
    return sorted({*object.__dir__(tensor)} - {"volatile"})


def _name(tensor: Tensor) -> str:
    kind = type(tensor)
    return "tensor" if kind is Tensor else kind.__name__


def _float_format(array: np.ndarray[Any, Any]) -> Callable[[Any], str]:
    """One format for all elements: whole numbers bare, extremes in scientific notation."""
    if array.dtype.kind != "f":
        return str
    finite = np.abs(array[np.isfinite(array)].astype(np.float64))
    nonzero = finite[finite > 0]
    if nonzero.size == 0 or (nonzero == np.floor(nonzero)).all():
        scientific = bool(nonzero.size and nonzero.max() > 10**8)
        plain: Callable[[Any], str] = "{:.0f}.".format
    else:
        low, high = nonzero.min(), nonzero.max()
        scientific = bool(high / low > 1000.0 or high > 10**8 or low < 10**-_DIGITS)
        plain = f"{{:.{_DIGITS}f}}".format
    chosen = f"{{:.{_DIGITS}e}}".format if scientific else plain

    def text(value: Any) -> str:
        return chosen(value) if np.isfinite(value) else str(value)

    shown = array if array.size <= _THRESHOLD else _ends(array)
    width = max(len(text(value)) for value in shown.ravel())
    return lambda value: text(value).rjust(width)


def _complex_format(array: np.ndarray[Any, Any]) -> Callable[[Any], str]:
    """``1.5000-2.j``: each part in its own format, the imaginary one with its sign."""
    if array.dtype.kind != "c":
        return str
    real, imag = _float_format(array.real), _float_format(array.imag)

    def text(value: Any) -> str:
        part = imag(value.imag).lstrip()
        return f"{real(value.real)}{'' if part.startswith('-') else '+'}{part}j"

    return text


def _ends(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``array`` without the middle of each dimension."""
    for axis, length in enumerate(array.shape):
        if length > 2 * _EDGE_ITEMS:
            kept = [*range(_EDGE_ITEMS), *range(length - _EDGE_ITEMS, length)]
            array = array.take(kept, axis)
    return array
