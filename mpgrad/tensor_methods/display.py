"""How a Tensor prints: as in PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape
from typing import Any

import numpy as np

from mpgrad.base.dtype import DEFAULTS, DTYPES
from mpgrad.base.html_text import preformatted
from mpgrad.devices.device_arrays import on_host
from mpgrad.tensors.tensor import Tensor


class _Options:
    """PyTorch's defaults."""

    #: With more elements the middle is omitted.
    threshold: Any = 1000
    #: Elements kept at each end.
    edgeitems = 3
    #: Digits after the point.
    precision = 4
    #: Characters in a line.
    linewidth = 80
    #: Whether powers of ten are shown; None: where numbers are large, small or very different.
    sci_mode: bool | None = None


#: Names of settings, as in PyTorch.
_PROFILES: dict[str, dict[str, Any]] = {
    "default": {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80},
    "short": {"precision": 2, "threshold": 1000, "edgeitems": 2, "linewidth": 80},
    "full": {"precision": 4, "threshold": float("inf"), "edgeitems": 3, "linewidth": 80},
}


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """How Tensors print from now on; what is None stays.

    Args:
        precision: digits after the point.
        threshold: with more elements the middle is omitted.
        edgeitems: elements kept at each end.
        linewidth: characters in a line.
        profile: ``"default"``, ``"short"`` or ``"full"``, before the others.
        sci_mode: powers of ten always, or never; None: where they help.

    Raises:
        ValueError: there is no such profile.
    """
    if profile is not None and profile not in _PROFILES:
        raise ValueError(f"profile must be one of {list(_PROFILES)}, but got {profile!r}")
    given = {
        "precision": precision,
        "threshold": threshold,
        "edgeitems": edgeitems,
        "linewidth": linewidth,
    }
    chosen = dict(_PROFILES[profile]) if profile is not None else {}
    chosen |= {name: value for name, value in given.items() if value is not None}
    for name, value in chosen.items():
        setattr(_Options, name, value)
    _Options.sci_mode = sci_mode


def represent(tensor: Tensor) -> str:
    """``tensor([1., 2.], requires_grad=True)``."""
    array = np.asarray(on_host(tensor._array))
    prefix = f"{_name(tensor)}("
    if array.size:
        text = np.array2string(
            array,
            max_line_width=_Options.linewidth,
            separator=", ",
            prefix=prefix,
            threshold=min(_Options.threshold, sys.maxsize),
            edgeitems=_Options.edgeitems,
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
    digits = _Options.precision
    finite = np.abs(array[np.isfinite(array)].astype(np.float64))
    nonzero = finite[finite > 0]
    if nonzero.size == 0 or (nonzero == np.floor(nonzero)).all():
        scientific = bool(nonzero.size and nonzero.max() > 10**8)
        plain: Callable[[Any], str] = "{:.0f}.".format
    else:
        low, high = nonzero.min(), nonzero.max()
        scientific = bool(high / low > 1000.0 or high > 10**8 or low < 1e-4)
        plain = f"{{:.{digits}f}}".format
    if _Options.sci_mode is not None:
        scientific = _Options.sci_mode
    chosen = f"{{:.{digits}e}}".format if scientific else plain

    def text(value: Any) -> str:
        return chosen(value) if np.isfinite(value) else str(value)

    shown = array if array.size <= _Options.threshold else _ends(array)
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
        if length > 2 * _Options.edgeitems:
            kept = [*range(_Options.edgeitems), *range(length - _Options.edgeitems, length)]
            array = array.take(kept, axis)
    return array
