"""Custom Functions that several tests use, in either library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Both places; torch ignores the attribute.
PLACES = ("client", "worker")


def define(
    lib: Any, forward: Callable[..., Any], backward: Callable[..., Any], **attributes: Any
) -> Any:
    """A Function class called Custom."""
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Custom", (lib.autograd.Function,), members | attributes)


def double(ctx: Any, x: Any) -> Any:
    return x * 2


def twice_the_gradient(ctx: Any, grad: Any) -> Any:
    return grad * 2


def squares(ctx: Any, x: Any) -> Any:
    ctx.save_for_backward(x)
    return x * x


def slope_of_squares(ctx: Any, grad: Any) -> Any:
    (x,) = ctx.saved_tensors
    return grad * 2 * x


def doubled_in_place(ctx: Any, x: Any) -> Any:
    x.mul_(2)
    ctx.mark_dirty(x)
    return x
