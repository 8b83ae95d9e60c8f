"""The user's hooks around calls of Modules: of one Module, and of all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mpgrad.base.accidental_ends import accidental_end
from mpgrad.nn.backward_hooks import WatchedCall, watch_last_node
from mpgrad.recording.graph.hooks import Hooks, RemovableHandle

if TYPE_CHECKING:
    from mpgrad.nn.module import Module


class ModuleHooks:
    """The hooks that are registered on one Module, or on all."""

    def __init__(self) -> None:
        #: Around the backward: ``(module, grad_output)`` and ``(module, grad_input, grad_output)``.
        self.before_backward = Hooks()
        self.after_backward = Hooks()
        #: On the last Node of the output only, as PyTorch's first backward hooks.
        self.after_last_node = Hooks()
        #: ``(module, args, kwargs) -> (args, kwargs)``.
        self.before_forward = Hooks()
        #: ``(module, args, kwargs, result) -> result``.
        self.after_forward = Hooks()

    def __len__(self) -> int:
        return sum(map(len, vars(self).values()))


#: Around the calls of all Modules; they come before a Module's own.
OF_ALL = ModuleHooks()


class HookedCall:
    """One call of a Module that has hooks, or while there are hooks of all Modules."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._sets = (OF_ALL,) if module._hooks is None else (OF_ALL, module._hooks)
        self._called: set[Callable[..., Any]] = set()

    def _hooks(self, kind: str) -> Iterator[Callable[..., Any]]:
        return (hook for hooks in self._sets for hook in getattr(hooks, kind))

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``module.forward``, with the hooks around it and its backward."""
        try:
            return self._run(args, kwargs)
        except Exception:
            self._call_what_is_always_called(args, kwargs)
            raise

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = self._module
        for hook in self._hooks("before_forward"):
            args, kwargs = hook(module, args, kwargs)
        before, after, last = (
            list(self._hooks(kind))
            for kind in ("before_backward", "after_backward", "after_last_node")
        )
        watched = WatchedCall(module, before, after) if before or after else None
        if watched is not None:
            args = watched.with_inputs(args)
        result = module.forward(*args, **kwargs)
        for hook in self._hooks("after_forward"):
            self._called.add(hook)
            result = hook(module, args, kwargs, result)
        if watched is not None:
            result = watched.with_result(result)
        if last:
            watch_last_node(module, args, result, last)
        return result

    def _call_what_is_always_called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for hook in self._hooks("after_forward"):
            if hook.always and hook not in self._called:  # type: ignore[attr-defined]
                try:
                    hook(self._module, args, kwargs, None)
                except Exception as error:
                    warnings.warn(
                        "module forward hook with ``always_call=True`` raised an exception that "
                        f"was silenced as another error was raised in forward: {error}",
                        stacklevel=4,
                    )


class _Registered:
    """A dictionary of hooks under PyTorch's name, which programs count and clear."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __get__(self, module: Any, owner: Any = None) -> Any:
        if module is None:
            return self
        return {} if module._hooks is None else getattr(module._hooks, self._kind)._by_id

    def __set__(self, module: Any, hooks: dict[int, Callable[..., Any]]) -> None:
        getattr(module._own_hooks(), self._kind)._by_id = hooks


class HasHooks:
    """What has hooks around its calls: a base class of Module.

    Every ``register_`` method returns a handle whose ``remove()`` takes the hook away. With
    ``prepend=True`` the hook comes before those that are there.
    """

    #: None until a hook is registered.
    _hooks: ModuleHooks | None = None

    _forward_pre_hooks = _Registered("before_forward")
    _forward_hooks = _Registered("after_forward")
    _backward_pre_hooks = _Registered("before_backward")
    _backward_hooks = _Registered("after_backward")

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args)`` before ``forward``.

        Args:
            hook: its result (None, a value or a tuple) replaces the arguments.
            prepend: call it before the hooks that are there already.
            with_kwargs: it gets the named arguments as a third one, and returns both or None.
        """
        call = BeforeForward(hook, with_kwargs)
        return self._own_hooks().before_forward.add(call, first=prepend)

    def register_forward_hook(
        self,
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Call ``hook(module, args, output)`` after ``forward``.

        Args:
            hook: its result replaces the output, unless it is None.
            prepend: call it before the hooks that are there already.
            with_kwargs: it gets the named arguments, too, before the output.
            always_call: call it with an output of None if ``forward`` or a hook raises.
        """
        call = AfterForward(hook, with_kwargs, always_call)
        return self._own_hooks().after_forward.add(call, first=prepend)

    def register_full_backward_pre_hook(
        self, hook: Callable[[Any, tuple[Any, ...]], Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, grad_output)`` when the gradients of this Module's outputs are known.

        Args:
            hook: gets a tuple with a Tensor or None for each output; what it returns (None, or as
                many) takes their place.
            prepend: call it before the hooks that are there already.
        """
        return self._own_hooks().before_backward.add(hook, first=prepend)

    def register_full_backward_hook(
        self, hook: Callable[[Any, tuple[Any, ...], tuple[Any, ...]], Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` when both are known.

        Args:
            hook: gets a tuple with a Tensor or None for each positional argument, and one for each
                output; what it returns (None, or as many) takes the place of the first.
            prepend: call it before the hooks that are there already.

        Raises:
            RuntimeError: the Module has hooks of ``register_backward_hook``.
        """
        hooks = self._own_hooks()
        if hooks.after_last_node:
            raise RuntimeError(
                "Cannot use both regular backward hooks and full backward hooks on a single "
                "Module. Please use only one of them."
            )
        return hooks.after_backward.add(hook, first=prepend)

    def register_backward_hook(
        self, hook: Callable[[Any, tuple[Any, ...], tuple[Any, ...]], Any]
    ) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` after the last Node of the output.

        PyTorch's first backward hook: ``grad_input`` has the gradients of that one Node, not of
        the Module. Use ``register_full_backward_hook`` in new programs.

        Raises:
            RuntimeError: the Module has full backward hooks.
        """
        hooks = self._own_hooks()
        if hooks.after_backward:
            raise RuntimeError(
                "Cannot use both regular backward hooks and full backward hooks on a single "
                "Module. Please use only one of them."
            )
        return hooks.after_last_node.add(hook)

    def _own_hooks(self) -> ModuleHooks:
        if self._hooks is None:
            self._hooks = ModuleHooks()
        return self._hooks


def register_module_forward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call ``hook(module, args)`` before the ``forward`` of every Module."""
    return OF_ALL.before_forward.add(BeforeForward(hook, with_kwargs=False))


def register_module_forward_hook(
    hook: Callable[..., Any], *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Call ``hook(module, args, output)`` after the ``forward`` of every Module."""
    return OF_ALL.after_forward.add(AfterForward(hook, with_kwargs, always_call))


def register_module_full_backward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call ``hook(module, grad_output)`` in the backward of every Module."""
    return OF_ALL.before_backward.add(hook)


def register_module_full_backward_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call ``hook(module, grad_input, grad_output)`` in the backward of every Module."""
    return OF_ALL.after_backward.add(hook)


def register_module_backward_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call ``hook`` as ``register_backward_hook`` does, for every Module."""
    return OF_ALL.after_last_node.add(hook)


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
