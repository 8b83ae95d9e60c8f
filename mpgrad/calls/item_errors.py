"""error_of_item(): what an item has raised, as its caller gets it."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

from mpgrad.calls.custom_functions.process_state import is_installed_namespace

CHANGED = (
    "{name} has changed {what} in place, which it shares with other calls. Work on a copy of it "
    "(.clone() of a tensor, .copy() of an array), and return what the caller needs"
)
_READ_ONLY = (
    "{name} has changed a tensor or an array{place} in place, which it shares with other calls; or "
    "compiled code has asked for leave to, as some of SciPy does where it only reads. Give it a "
    "copy (.clone() of a tensor, .copy() of an array, copy.deepcopy() of an object; changes=(...) "
    "of parallel_map() names attributes that are copied), and return what the caller needs"
)


def error_of_item(
    error: BaseException, name: str, number: int, args: Sequence[Any], tensor: type[Any]
) -> BaseException:
    """The exception for the caller, with a note that names the item.

    Args:
        error: what it has raised. Tensors in it lose their history: a gradient that the caller asks
            of them is then an error.
        name: of the function.
        number: of the item.
        args: its arguments.
        tensor: the class of tensors.
    """
    if isinstance(error, ValueError | RuntimeError) and "read-only" in str(error):
        found = RuntimeError(_READ_ONLY.format(name=name, place=_place_of(error)))
        found.__cause__ = error
        error = found
    error.args = _detached(error.args, tensor)
    vars(error).update(_detached(vars(error), tensor))  # a frozen dataclass refuses setattr
    error.add_note(f"in {name} of item {number}{_shapes(args)}")
    return error


def _detached(value: Any, tensor: type[Any]) -> Any:
    """``value``, with tensors without history in tuples, lists and dictionaries."""
    if isinstance(value, tensor):
        return value.detach() if value.requires_grad else value
    if type(value) in (tuple, list):
        return type(value)([_detached(one, tensor) for one in value])
    if type(value) is dict:
        return {key: _detached(one, tensor) for key, one in value.items()}
    return value


def _place_of(error: BaseException) -> str:
    """The line of the user's program that raised ``error``."""
    frames = [
        frame
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if not is_installed_namespace(frame.f_globals)
    ]
    if not frames:
        return ""
    frame = frames[-1]
    return f" (line {frame.f_lineno} of {frame.f_code.co_filename})"


def _shapes(args: Sequence[Any]) -> str:
    shapes = [
        f"{type(one).__name__}{list(one.shape)}" if hasattr(one, "shape") else type(one).__name__
        for one in args
    ]
    return f" ({', '.join(shapes)})"
