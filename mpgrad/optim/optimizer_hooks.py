"""The user's hooks around steps and state dicts of optimizers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from itertools import chain
from typing import Any

from mpgrad.arrays.cpu.array_program import TRACING
from mpgrad.recording.graph.hooks import Hooks, RemovableHandle

#: Around the steps of all optimizers.
_BEFORE_ANY_STEP, _AFTER_ANY_STEP = Hooks(), Hooks()


def register_optimizer_step_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call ``hook`` as :meth:`WithHooks.register_step_pre_hook` does, for every optimizer."""
    return _BEFORE_ANY_STEP.add(hook)


def register_optimizer_step_post_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call ``hook`` as :meth:`WithHooks.register_step_post_hook` does, for every optimizer."""
    return _AFTER_ANY_STEP.add(hook)


def with_step_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """``step`` of a class of optimizers, between its hooks; it notes that it was called."""

    @wraps(step)
    def hooked(self: WithHooks, *args: Any, **kwargs: Any) -> Any:
        self._opt_called = True
        if self._is_in_step or not (self._hooks or _BEFORE_ANY_STEP or _AFTER_ANY_STEP):
            return step(self, *args, **kwargs)
        if TRACING.entered and any(hooks for _, hooks in step_hooks(self)):
            TRACING.program().give_up("hooks of optimizers are not compiled")
        given: tuple[Any, ...] = (self, *args)
        self._is_in_step = True  # a step may call that of its base class
        try:
            for hook in chain(_BEFORE_ANY_STEP, self._hooks["step_pre"]):
                changed = hook(self, given, kwargs)
                if changed is None:
                    continue
                if not (isinstance(changed, tuple) and len(changed) == 2):
                    raise RuntimeError(
                        f"{hook} must return None or a tuple of (new_args, new_kwargs), but got "
                        f"{changed}."
                    )
                given, kwargs = changed
            result = step(*given, **kwargs)
            for hook in chain(self._hooks["step_post"], _AFTER_ANY_STEP):
                hook(self, given, kwargs)
        finally:
            self._is_in_step = False
        return result

    return hooked


def step_hooks(optimizer: WithHooks) -> list[tuple[str, Hooks]]:
    """All that a step of ``optimizer`` calls, by name."""
    return [
        ("hooks before any step", _BEFORE_ANY_STEP),
        ("hooks before a step", optimizer._hooks["step_pre"]),
        ("hooks after a step", optimizer._hooks["step_post"]),
        ("hooks after any step", _AFTER_ANY_STEP),
    ]


class WithHooks:
    """What has hooks: the base class of Optimizer.

    Every ``register_`` method returns a handle whose ``remove()`` takes the hook away. With
    ``prepend=True`` the hook comes before those that are there.
    """

    #: Whether ``step`` was called: schedulers come after it.
    _opt_called = False
    _is_in_step = False

    def __init__(self) -> None:
        self._hooks: defaultdict[str, Hooks] = defaultdict(Hooks)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "step" in vars(cls):
            cls.step = with_step_hooks(vars(cls)["step"])  # type: ignore[attr-defined]

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` before each step.

        ``args`` begins with the optimizer. The hook may return (args, kwargs) for the step.
        """
        return self._hooks["step_pre"].add(hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` after each step."""
        return self._hooks["step_post"].add(hook)

    def register_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(optimizer)`` before ``state_dict()``."""
        return self._hooks["state_dict_pre"].add(hook, first=prepend)

    def register_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(optimizer, state_dict)`` after ``state_dict()``.

        It may change the dict, or return another one.
        """
        return self._hooks["state_dict_post"].add(hook, first=prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(optimizer, state_dict)`` before ``load_state_dict()``.

        It gets a shallow copy, which it may change; or it returns another dict.
        """
        return self._hooks["load_pre"].add(hook, first=prepend)

    def register_load_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(optimizer)`` after ``load_state_dict()``."""
        return self._hooks["load_post"].add(hook, first=prepend)

    def _call_hooks(self, kind: str) -> None:
        for hook in self._hooks.get(kind, ()):
            hook(self)

    def _through_hooks(self, kind: str, state_dict: dict[str, Any]) -> dict[str, Any]:
        for hook in self._hooks.get(kind, ()):
            changed = hook(self, state_dict)
            if changed is not None:
                state_dict = changed
        return state_dict
