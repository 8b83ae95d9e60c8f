"""RemoteModule: a Module that another process owns, and whose forward runs there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from mpgrad.distributed.futures import Future
from mpgrad.distributed.rpc.remote_calls import rpc_async, rpc_sync
from mpgrad.distributed.rpc.remote_reference import RRef
from mpgrad.nn.module import Module

#: Methods of a Module that make no sense where its parameters are not.
_UNSUPPORTED = (
    "register_buffer register_parameter add_module apply cuda cpu type float double half bfloat16 "
    "to register_backward_hook register_full_backward_hook register_forward_pre_hook "
    "register_forward_hook state_dict load_state_dict parameters named_parameters buffers "
    "named_buffers children named_children modules named_modules requires_grad_ zero_grad "
    "share_memory extra_repr"
)


class RemoteModule(Module):
    """``module_cls(*args, **kwargs)`` in another process.

    In an autograd context (``mpgrad.distributed.autograd``) gradients cross to it. A RemoteModule
    may be an argument of a remote call: all copies mean the same module.

    Args:
        remote_device: the name of the process, or ``rank:K``, perhaps with a device behind it:
            ``"ps"``, ``"ps/cpu"``, ``"rank:1/cuda:0"``. Tensors among the inputs come to that
            device, and results to the CPU.
        module_cls: a subclass of Module, or a function that returns one.
        args, kwargs: of ``module_cls``.

    Attributes:
        on: the process.
        device: of the module there.
        module_rref: the reference to the module.

    Raises:
        HostLost: that process has died.
        ValueError: ``module_cls`` makes no Module, or ``remote_device`` names nothing.
    """

    on: str | int
    device: str
    module_rref: RRef

    def __init__(
        self,
        remote_device: str,
        module_cls: Any,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.on, self.device = _parsed(remote_device)
        made = module_cls, tuple(args or ()), dict(kwargs or {}), self.device
        self.module_rref = rpc_sync(self.on, _make, made)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module's forward gives; it runs over there."""
        return self.forward_async(*args, **kwargs).wait()

    def forward_async(self, *args: Any, **kwargs: Any) -> Future:
        """As ``forward``, without waiting."""
        return rpc_async(self.on, _forward, (self.module_rref, self.device, args, kwargs))

    def remote_parameters(self, recurse: bool = True) -> list[RRef]:
        """References to the parameters, for ``DistributedOptimizer``.

        Args:
            recurse: with those of submodules.
        """
        found: list[RRef] = rpc_sync(self.on, _parameters, (self.module_rref, recurse))
        return found

    def get_module_rref(self) -> RRef:
        """The reference to the module."""
        return self.module_rref

    def train(self, mode: bool = True) -> RemoteModule:
        """Put the module into training mode, or take it out."""
        rpc_sync(self.on, _train, (self.module_rref, mode))
        return self

    def __repr__(self) -> str:
        return f"RemoteModule(on={self.on!r}, device={self.device!r})"

    def __reduce__(self) -> Any:
        return _arrived, (self.on, self.device, self.module_rref)


def _parsed(remote_device: str) -> tuple[str | int, str]:
    on, _, device = remote_device.partition("/")
    kind, _, number = on.partition(":")
    if kind == "rank" and number.isdecimal():
        return int(number), device or "cpu"
    if not on or ":" in on or on == "cpu":
        raise ValueError(
            f"remote_device={remote_device!r}: expected the name of a process or rank:K, perhaps "
            "with a device: ps, ps/cpu, rank:1/cuda:0"
        )
    return on, device or "cpu"


def _refusal(name: str) -> Any:
    remedy = " Please use ``remote_parameters`` instead." if name == "parameters" else ""

    def refused(self: RemoteModule, *_: Any, **__: Any) -> NoReturn:
        raise ValueError(f"Method ``{name}`` not supported for RemoteModule.{remedy}")

    return refused


for _name in _UNSUPPORTED.split():
    setattr(RemoteModule, _name, _refusal(_name))


def _arrived(on: str | int, device: str, module_rref: RRef) -> RemoteModule:
    copy = RemoteModule.__new__(RemoteModule)
    Module.__init__(copy)
    copy.on, copy.device, copy.module_rref = on, device, module_rref
    return copy


# ---------------------------------------------------------------------------- at the owner


def _make(module_cls: Any, args: Sequence[Any], kwargs: Mapping[str, Any], device: str) -> RRef:
    module = module_cls(*args, **kwargs)
    if not isinstance(module, Module):
        raise ValueError(
            "Expect `module_cls(*args, **kwargs)` returns an instance of <class nn.Module>, but it "
            f"returns an instance of {type(module)}."
        )
    return RRef(module.to(device))


def _forward(module_rref: RRef, device: str, args: Any, kwargs: Any) -> Any:
    module = module_rref.local_value()
    if device == "cpu":
        return module(*args, **kwargs)
    return _moved(module(*_moved(args, device), **_moved(kwargs, device)), "cpu")


def _moved(value: Any, device: str) -> Any:
    """``value`` with its tensors on ``device``."""
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_moved(item, device) for item in value)
    return value.to(device) if hasattr(value, "is_leaf") else value


def _parameters(module_rref: RRef, recurse: bool) -> list[RRef]:
    return [RRef(parameter) for parameter in module_rref.local_value().parameters(recurse)]


def _train(module_rref: RRef, mode: bool) -> None:
    module_rref.local_value().train(mode)
