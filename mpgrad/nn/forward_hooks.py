"""Forward hooks of a Module: how the result of a hook changes the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpgrad.base.accidental_ends import accidental_end


class BeforeForward:
    """A hook that may change the arguments."""

    def __init__(self, hook: Callable[..., Any], with_kwargs: bool) -> None:
        self.hook, self.with_kwargs = hook, with_kwargs

    def __call__(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        named = (kwargs,) if self.with_kwargs else ()
        returned = _returned(self.hook, module, args, *named)
        if not self.with_kwargs:
            if returned is None:
                return args, kwargs
            return (returned if isinstance(returned, tuple) else (returned,)), kwargs
        if returned is None:
            return args, kwargs
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise RuntimeError(
                "forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got "
                f"{returned}."
            )
        return returned


class AfterForward:
    """A hook that may change the output; ``always``: also called after an exception."""

    def __init__(self, hook: Callable[..., Any], with_kwargs: bool, always: bool) -> None:
        self.hook, self.with_kwargs, self.always = hook, with_kwargs, always

    def __call__(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        named = (kwargs,) if self.with_kwargs else ()
        returned = _returned(self.hook, module, args, *named, result)
        return result if returned is None else returned


def _returned(hook: Callable[..., Any], *args: Any) -> Any:
    try:
        return hook(*args)
    except StopIteration as error:
        raise accidental_end("A forward hook") from error
