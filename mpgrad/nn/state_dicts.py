"""State dicts of Modules: how they are made and loaded, and the user's hooks around both."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpgrad.base.size import Size
from mpgrad.nn.parameter import Parameter, is_uninitialized
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.graph.hooks import Hooks, RemovableHandle
from mpgrad.recording.tensors.of_pytorch import is_of_pytorch
from mpgrad.recording.tensors.tensor import Tensor

if TYPE_CHECKING:
    from mpgrad.nn.module import Module

#: What a Module's own extra state is called in a state dict.
_EXTRA_STATE = "_extra_state"


class _Keys(NamedTuple):
    missing_keys: list[str]
    unexpected_keys: list[str]


class IncompatibleKeys(_Keys):
    """The keys that ``load_state_dict(strict=False)`` could not match."""

    __slots__ = ()

    def __repr__(self) -> str:
        if not any(self):
            return "<All keys matched successfully>"
        missing, unexpected = self
        return f"IncompatibleKeys(missing_keys={missing}, unexpected_keys={unexpected})"

    __str__ = __repr__


class _LocalMetadata(dict[str, Any]):
    """The metadata of one Module, and what is written into it once all of the dict fits."""

    writes: list[Callable[[], None]] | None = None


class HasStateDict:
    """What has a state dict: the base class of Module.

    Every ``register_`` method returns a handle whose ``remove()`` takes the hook away.
    """

    #: Raised by classes that change what their state dict holds; ``_load_from_state_dict`` gets
    #: the version that a dict was made with.
    _version: int = 1
    _state_hooks: defaultdict[str, Hooks] | None = None

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _non_persistent: set[str]

    # ------------------------------------------------------------------ hooks

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(module, prefix, keep_vars)`` before ``state_dict()``."""
        return self._add_state_hook("save_pre", hook)

    def register_state_dict_post_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Call ``hook(module, state_dict, prefix, local_metadata)``, which may change the dict."""

        return self._add_state_hook("save_post", _WithoutResult(hook))

    def _register_state_dict_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """The same, of a hook that may return another dict."""
        return self._add_state_hook("save_post", hook)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook`` before this Module's entries are read.

        Args:
            hook: gets the Module and the arguments of ``_load_from_state_dict``, and may change
                the dict.
        """
        return self._add_state_hook("load_pre", hook)

    def _register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], with_module: bool = False
    ) -> RemovableHandle:
        """The same, of a hook that does not get the Module."""
        return self._add_state_hook("load_pre", hook if with_module else _WithoutModule(hook))

    def register_load_state_dict_post_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Call ``hook(module, incompatible_keys)`` after the Module's entries have been copied.

        The hook may change both lists of keys.
        """
        return self._add_state_hook("load_post", hook)

    def _add_state_hook(self, kind: str, hook: Callable[..., Any]) -> RemovableHandle:
        if self._state_hooks is None:
            self._state_hooks = defaultdict(Hooks)
        return self._state_hooks[kind].add(hook)

    def _state_hooks_of(self, kind: str) -> Iterator[Callable[..., Any]]:
        return iter(() if self._state_hooks is None else self._state_hooks.get(kind, ()))

    # ------------------------------------------------------------------ making

    def get_extra_state(self) -> Any:
        """What else belongs to the state; a class that has such defines both methods."""
        raise RuntimeError(
            "Reached a code path in Module.get_extra_state() that should never be called: a class "
            "with extra state defines it"
        )

    def set_extra_state(self, state: Any) -> None:
        """Take what ``get_extra_state`` gave."""
        raise RuntimeError(
            "Reached a code path in Module.set_extra_state() that should never be called: a class "
            "with extra state defines it"
        )

    def state_dict(
        self,
        *,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> dict[str, Any]:
        """Parameters and persistent buffers by name; they share memory with the Module's.

        Args:
            destination: a dict that gets the entries, instead of a new one.
            prefix: what their names begin with.
            keep_vars: give the Parameters themselves, not detached from the graph.
        """
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()  # type: ignore[attr-defined]
        local_metadata = {"version": self._version}
        if (metadata := getattr(destination, "_metadata", None)) is not None:
            metadata[prefix[:-1]] = local_metadata
        for hook in self._state_hooks_of("save_pre"):
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, child in self._modules.items():
            if child is not None:
                child.state_dict(
                    destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars
                )
        for hook in self._state_hooks_of("save_post"):
            changed = hook(self, destination, prefix, local_metadata)
            destination = destination if changed is None else changed
        return destination

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        """Put the entries of this Module, without its children, into ``destination``."""
        for name, tensor in self._own_state():
            kept = keep_vars or is_uninitialized(tensor)
            destination[prefix + name] = tensor if kept else tensor.detach()
        if self._has("get_extra_state"):
            destination[prefix + _EXTRA_STATE] = self.get_extra_state()

    def _own_state(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in (*self._parameters.items(), *self._buffers.items()):
            if tensor is not None and name not in self._non_persistent:
                yield name, tensor

    def _has(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(HasStateDict, method)

    # ------------------------------------------------------------------ loading

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copy Tensors or arrays into the Parameters and buffers of the same names.

        Nothing is changed where something does not fit. A Module with hooks that come after loading
        has its entries, and all that were read before, when they are called.

        Args:
            state_dict: what ``state_dict`` gave, or any mapping of the same names.
            strict: the names have to be the same.
            assign: put the Tensors of the mapping in place of the Module's own. Parameters keep
                their ``requires_grad``.

        Raises:
            RuntimeError: a shape differs, or ``strict`` and a name is missing or unknown.
            TypeError: it is no mapping.
        """
        if not isinstance(state_dict, Mapping):
            remedy = " Load the file first, with mg.load." if isinstance(state_dict, str) else ""
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.{remedy}")
        loading = _Loading(getattr(state_dict, "_metadata", None) or {}, assign)
        loading.read(self, OrderedDict(state_dict), "")
        problems = loading.problems
        missing, unexpected = loading.keys
        for word, names in (("Unexpected", unexpected), ("Missing", missing)):
            if strict and names:
                listed = ", ".join(f'"{name}"' for name in names)
                problems.insert(0, f"{word} key(s) in state_dict: {listed}. ")
        if problems:
            text = "\n\t".join(problems)
            kind = type(self).__name__
            raise RuntimeError(f"Error(s) in loading state_dict for {kind}:\n\t{text}")
        loading.write()
        return loading.keys

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Take the entries of this Module, without its children.

        Args:
            state_dict: at least the entries whose names begin with ``prefix``.
            prefix: of this Module's names.
            local_metadata: ``version``, of the Module that made the dict.
            strict: whether to list keys.
            missing_keys: gets the names that the dict lacks.
            unexpected_keys: gets those that the Module lacks.
            error_msgs: gets what does not fit.
        """
        given = (prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        for hook in self._state_hooks_of("load_pre"):
            hook(self, state_dict, *given)
        own = dict(self._own_state())
        assign = local_metadata.get("assign_to_params_buffers", False)
        later = getattr(local_metadata, "writes", None)
        writes: list[Callable[[], None]] = [] if later is None else later
        for name, tensor in own.items():
            key = prefix + name
            if key not in state_dict:
                missing_keys += [key] if strict else []
                continue
            problem = _mismatch(key, state_dict[key], tensor)
            if problem:
                error_msgs.append(problem)
            else:
                writes.append(_Write(self, name, tensor, state_dict[key], assign))
        extra = prefix + _EXTRA_STATE
        if self._has("set_extra_state"):
            if extra in state_dict:
                writes.append(lambda: self.set_extra_state(state_dict[extra]))
            elif strict:
                missing_keys.append(extra)
        elif strict and extra in state_dict:
            unexpected_keys.append(extra)
        if strict:
            unexpected_keys += self._unexpected(state_dict, prefix, own)
        if later is None:
            for write in writes:
                write()

    def _unexpected(
        self, state_dict: Mapping[str, Any], prefix: str, own: Mapping[str, Tensor]
    ) -> Iterator[str]:
        """The names with ``prefix`` that are neither this Module's nor below a child's."""
        for key in state_dict:
            if key.startswith(prefix) and key != prefix + _EXTRA_STATE:
                name, dot, _ = key.removeprefix(prefix).partition(".")
                if name not in (self._modules if dot else own):
                    yield key


class _WithoutResult:
    """A hook that may not return another state dict."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._hook = hook

    def __call__(self, *args: Any) -> None:
        if self._hook(*args) is not None:
            raise RuntimeError("state_dict post-hook must return None")


class _WithoutModule:
    """A hook that does not get the Module."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._hook = hook

    def __call__(self, module: HasStateDict, *args: Any) -> None:
        self._hook(*args)


class _Write:
    """An entry that goes into a Module."""

    def __init__(
        self, module: HasStateDict, name: str, tensor: Tensor, value: Any, assign: bool
    ) -> None:
        self._module, self._name, self._tensor = module, name, tensor
        self._value, self._assign = value, assign

    def __call__(self) -> None:
        value, tensor = self._value, self._tensor
        if is_uninitialized(value):
            return  # as the Module's own is
        if is_uninitialized(tensor):
            tensor.materialize(tuple(value.shape))  # type: ignore[attr-defined]
        if not self._assign:
            with no_grad():
                tensor.copy_(value)
            return
        value = value if isinstance(value, Tensor) else Tensor(value)
        if isinstance(tensor, Parameter):
            if not isinstance(value, Parameter):
                value = Parameter(value, tensor.requires_grad)
            value.requires_grad = tensor.requires_grad
        setattr(self._module, self._name, value)


class _Loading:
    """One ``load_state_dict``: what was found, and what is to be written."""

    def __init__(self, metadata: Mapping[str, Any], assign: bool) -> None:
        self._metadata, self._assign = metadata, assign
        self._writes: list[Callable[[], None]] = []
        self.keys = IncompatibleKeys([], [])
        self.problems: list[str] = []

    def read(self, module: HasStateDict, state_dict: dict[str, Any], prefix: str) -> None:
        """Look at the entries of ``module`` and of all below it."""
        local = _LocalMetadata(self._metadata.get(prefix[:-1], {}))
        local.writes = self._writes
        if self._assign:
            local["assign_to_params_buffers"] = True
        missing, unexpected = self.keys
        module._load_from_state_dict(
            state_dict, prefix, local, True, missing, unexpected, self.problems
        )
        for name, child in module._modules.items():
            if child is not None:
                inner = f"{prefix}{name}."
                own = {key: value for key, value in state_dict.items() if key.startswith(inner)}
                self.read(child, own, inner)
        for hook in module._state_hooks_of("load_post"):
            self.write()
            if hook(module, self.keys) is not None:
                raise AssertionError(
                    "Hooks registered with ``register_load_state_dict_post_hook`` are not expected "
                    "to return new values, if incompatible_keys need to be modified, it should be "
                    "done inplace."
                )

    def write(self) -> None:
        """Write what has been read."""
        writes, self._writes[:] = list(self._writes), []
        for write in writes:
            write()


def _mismatch(name: str, value: Any, own: Tensor) -> str:
    """Why ``value`` cannot be copied into ``own``; empty if it can."""
    if not isinstance(value, Tensor | np.ndarray):
        what_helps = ": give its .numpy()" if is_of_pytorch(value) else ""
        return (
            f'While copying the parameter named "{name}", expected torch.Tensor or Tensor-like '
            f"object from checkpoint but received {type(value)}{what_helps}"
        )
    if is_uninitialized(own) or (value.shape == own.shape and not is_uninitialized(value)):
        return ""
    if is_uninitialized(value):
        return (
            f"{name}: can't access the shape of an uninitialized parameter or buffer from "
            "checkpoint; the Module's own is initialized already"
        )
    return (
        f"size mismatch for {name}: copying a param with shape {Size(value.shape)} from "
        f"checkpoint, the shape in current model is {own.shape}."
    )
