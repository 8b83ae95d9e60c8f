"""What the programs about checkpoints share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def tools(lib: Any) -> Any:
    """``mg.utils.checkpoint`` or ``torch.utils.checkpoint``."""
    return importlib.import_module(f"{lib.__name__}.utils.checkpoint")


class Counted:
    """A function that counts its calls and notes whether each was recorded."""

    def __init__(self, lib: Any, function: Callable[..., Any]) -> None:
        self.lib, self.function = lib, function
        self.recorded: list[bool] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.recorded.append(self.lib.is_grad_enabled())
        return self.function(*args, **kwargs)


def layers(x: Any, w: Any) -> Any:
    """Something that saves inputs and outputs."""
    return ((x * w).exp() + x).tanh() * w


BOTH = (False, True)
