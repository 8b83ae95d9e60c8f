"""How a Tensor prints: as in PyTorch."""

from __future__ import annotations

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.base.dtype import DEFAULTS, DTYPES, default_float
from mpgrad.base.html_text import escaped, preformatted
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.tensor_methods.array_text import OPTIONS, array_text, with_notes


def represent(tensor: Tensor) -> str:
    """``tensor([1., 2.], requires_grad=True)``."""
    array = np.asarray(on_host(tensor._array))
    prefix, notes = f"{_name(tensor)}(", []
    if tensor.device.type != "cpu":
        notes.append(f"device='{tensor.device}'")
    if (not array.size and array.ndim != 1) or (array.size and not OPTIONS.edgeitems):
        notes.append(f"size={array.shape}")
    # A reader expects the default dtypes, of no elements that of floats alone.
    if array.dtype not in DEFAULTS if array.size else array.dtype != default_float():
        notes.append(f"dtype={DTYPES[array.dtype]}")
    history = _history(tensor)
    if history:
        notes.append(history)
    text = array_text(array, len(prefix)) if array.size else "[]"
    return with_notes(prefix + text, notes, len(prefix)) + ")"


def represent_html(tensor: Tensor) -> str:
    """For notebooks: what it is, above its values."""
    facts = [
        str(DTYPES[tensor._array.dtype]),
        f"shape {tuple(tensor.shape)}",
        str(tensor.device),
        *filter(None, [_history(tensor)]),
    ]
    return f"<p><b>{_name(tensor)}</b> {escaped(', '.join(facts))}</p>{preformatted(repr(tensor))}"


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
