"""The elements of an array as text, as PyTorch prints them, and the options for that."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpgrad.base.print_options import OPTIONS

__all__ = ["set_printoptions"]


_PROFILES: dict[str, dict[str, Any]] = {
    "default": {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80},
    "short": {"precision": 2, "threshold": 1000, "edgeitems": 2, "linewidth": 80},
    "full": {"precision": 4, "threshold": math.inf, "edgeitems": 3, "linewidth": 80},
}


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Change how tensors print; options that are not given stay, but for ``sci_mode``.

    Args:
        precision: digits after the point.
        threshold: with more elements the middle of each dimension is omitted.
        edgeitems: elements that are kept at each end then.
        linewidth: characters of a line.
        profile: ``"default"``, ``"short"`` or ``"full"``: values for all of these.
        sci_mode: scientific notation always or never; None: where numbers ask for it.
    """
    given = {"precision": precision, "threshold": threshold}
    given |= {"edgeitems": edgeitems, "linewidth": linewidth}
    chosen = {name: value for name, value in given.items() if value is not None}
    for name, value in {**_PROFILES.get(profile or "", {}), **chosen}.items():
        setattr(OPTIONS, name, value)
    OPTIONS.sci_mode = sci_mode


def array_text(array: np.ndarray[Any, Any], indent: int) -> str:
    """The elements in brackets.

    Args:
        array: with at least one element.
        indent: characters before the text in its first line.
    """
    is_short = array.size > OPTIONS.threshold
    shown = _ends(array) if is_short else array
    if array.dtype.kind == "c":
        real, imag = _Column(shown.real), _Column(shown.imag)
        width = real.width + imag.width + 1
        return _nested(array, indent, is_short, width, lambda z: _complex_text(z, real, imag))
    column = _Column(shown)
    return _nested(array, indent, is_short, column.width, column.text)


class _Column:
    """One format for all elements: whole numbers bare, extremes in scientific notation."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.spec, self.point = "", ""
        #: Characters of the longest element; infinity and NaN do not count.
        self.width = 1
        if values.dtype.kind != "f":
            counted = values.ravel().tolist()
        else:
            flat = values.ravel().astype(np.float64)
            counted = flat[np.isfinite(flat) & (flat != 0)]
            self._choose(counted)
            counted = counted.tolist()
        self.width = max([1, *(len(self._bare(value)) for value in counted)])

    def _choose(self, numbers: np.ndarray[Any, Any]) -> None:
        sizes, self.spec, self.point = np.abs(numbers), ".0f", "."
        if not sizes.size:
            return
        low, high = sizes.min(), sizes.max()
        scientific = bool(high / low > 1000.0 or high > 1e8 or low < 1e-4)
        if OPTIONS.sci_mode is not None:
            scientific = OPTIONS.sci_mode
        if scientific or (numbers != np.ceil(numbers)).any():
            self.spec, self.point = f".{OPTIONS.precision}{'e' if scientific else 'f'}", ""

    def _bare(self, value: Any) -> str:
        text = format(value, self.spec) if self.spec else str(value)
        return text + self.point if self.point and math.isfinite(value) else text

    def text(self, value: Any) -> str:
        return self._bare(value).rjust(self.width)


def _complex_text(value: complex, real: _Column, imag: _Column) -> str:
    """``1.5000-2.j``: each part in its own format, the imaginary one with its sign."""
    part = imag.text(value.imag).lstrip()
    return f"{real.text(value.real)}{'' if part.startswith('-') else '+'}{part}j"


def _nested(
    array: np.ndarray[Any, Any],
    indent: int,
    is_short: bool,
    width: int,
    text: Callable[[Any], str],
) -> str:
    if not array.ndim:
        return text(array.item())
    edge, length = OPTIONS.edgeitems, len(array)
    is_cut = is_short and length > 2 * edge
    kept = [*range(edge), *range(length - edge, length)] if is_cut else [*range(length)]
    if array.ndim == 1:
        items, dots = [text(value) for value in array[kept].tolist()], " ..." if edge else "..."
        between = (OPTIONS.linewidth - indent) // (width + 2)
        per_line, newline = max(1, between), ",\n" + " " * (indent + 1)
    else:
        items = [_nested(array[at], indent + 1, is_short, width, text) for at in kept]
        dots, per_line = "...", 1
        newline = "," + "\n" * (array.ndim - 1) + " " * (indent + 1)
    if is_cut:
        items.insert(edge, dots)
    lines = [", ".join(items[at : at + per_line]) for at in range(0, len(items), per_line)]
    return "[" + newline.join(lines) + "]"


def with_notes(text: str, notes: Sequence[str], indent: int) -> str:
    """``text`` with ``notes`` behind it, each in a new line where the last one has no room."""
    taken = len(text) - text.rfind("\n") + 1
    for note in notes:
        taken += len(note) + 2
        is_full = taken > OPTIONS.linewidth
        text += (",\n" + " " * indent if is_full else ", ") + note
        taken = indent + len(note) if is_full else taken
    return text


def _ends(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``array`` without the middle of each dimension."""
    edge = OPTIONS.edgeitems
    for axis, length in enumerate(array.shape):
        if length > 2 * edge:
            array = array.take([*range(edge), *range(length - edge, length)], axis)
    return array
