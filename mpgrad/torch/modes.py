"""What torch keeps around a call: modes that operations notice, as plain values, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as modules
from torch.nn.utils import parametrize
from torch.utils._device import DeviceContext

from mpgrad.autograd.running import engine_slot
from mpgrad.calls.array_library import HOOKS_OF_ALL

#: Smaller than any normal number: times one it is zero if denormal numbers are flushed.
_DENORMAL = 5e-324


class Modes(NamedTuple):
    """The modes of a thread; all but the first seven belong to the process.

    Attributes:
        grad, inference: whether operations are recorded; inference mode.
        anomaly, checks_nan: anomaly mode, and whether it searches for NaN.
        autocast: the name of its dtype on the CPU; empty: it is off.
        caches: whether autocast keeps casts of parameters.
        computes_once: whether ``parametrize.cached()`` is entered.
        default_dtype: its name.
        matmul_precision: of float32.
        deterministic: 0, 1 (it warns) or 2.
        fills: whether memory is filled in deterministic mode.
        flushes: whether denormal numbers are zeros.
        onednn: whether it is used.
    """

    grad: bool
    inference: bool
    anomaly: bool
    checks_nan: bool
    autocast: str
    caches: bool
    computes_once: bool
    default_dtype: str
    matmul_precision: str
    deterministic: int
    fills: bool
    flushes: bool
    onednn: bool


def current_modes() -> Modes:
    """Those of this thread."""
    autocast = torch.is_autocast_enabled("cpu")
    return Modes(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
        _name(torch.get_autocast_dtype("cpu")) if autocast else "",
        torch.is_autocast_cache_enabled(),
        parametrize._cache_enabled > 0,
        _name(torch.get_default_dtype()),
        torch.get_float32_matmul_precision(),
        torch.get_deterministic_debug_mode(),
        torch.utils.deterministic.fill_uninitialized_memory,
        _DENORMAL * len("1") == 0.0,
        torch.backends.mkldnn.enabled,
    )


def require_no_others() -> None:
    """Refuse what would change operations and Modules in this process alone.

    Raises:
        RuntimeError: there is a TorchFunctionMode, a TorchDispatchMode, or a hook of all Modules.
    """
    for mode in (*_function_modes(), *_dispatch_modes()):
        if type(mode) is not DeviceContext or mode.device.type != "cpu":
            raise RuntimeError(
                f"a map or a fork inside of {type(mode).__name__}, which no worker has: enter it "
                "inside of what is called"
            )
    if any(vars(modules)[name] for name in _HOOKS_OF_ALL):
        raise RuntimeError(HOOKS_OF_ALL)


@contextmanager
def entered(modes: Modes) -> Iterator[None]:
    """Have these modes, and one thread."""
    before = current_modes()
    with ExitStack() as stack:
        if not engine_slot.is_worker:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            stack.callback(torch.set_num_threads, threads)
            _leave_saved_tensors_hooks(stack)
        if before.computes_once or modes.computes_once:
            # What it has kept are tensors of the caller's graph.
            for name, value in ("_cache_enabled", int(modes.computes_once)), ("_cache", {}):
                stack.callback(setattr, parametrize, name, vars(parametrize)[name])
                setattr(parametrize, name, value)
        if before[7:] != modes[7:]:
            stack.callback(_set, before)
            _set(modes)
        if before.inference or modes.inference:
            stack.enter_context(torch.inference_mode(modes.inference))
        stack.enter_context(torch.set_grad_enabled(modes.grad))
        if before.anomaly or modes.anomaly:
            stack.enter_context(torch.autograd.set_detect_anomaly(modes.anomaly, modes.checks_nan))
        if before.autocast or modes.autocast:
            dtype = _dtype(modes.autocast) if modes.autocast else None
            enabled = bool(modes.autocast)
            stack.enter_context(torch.autocast("cpu", dtype, enabled, modes.caches))
        yield


def _set(modes: Modes) -> None:
    torch.set_default_dtype(_dtype(modes.default_dtype))
    torch.set_float32_matmul_precision(modes.matmul_precision)
    torch.set_deterministic_debug_mode(modes.deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = modes.fills
    torch.set_flush_denormal(modes.flushes)
    torch.backends.mkldnn.set_flags(modes.onednn)


# ---------------------------------------------------------------------- private names of torch

_HOOKS_OF_ALL = [
    name
    for name, found in vars(modules).items()
    if name.startswith("_global_") and name.endswith("_hooks") and isinstance(found, dict)
]


_top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def _leave_saved_tensors_hooks(stack: ExitStack) -> None:
    """Let hooks around a call not see what it saves: no worker has them."""
    while _top_hooks is not None and (hooks := _top_hooks(True)) is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        stack.callback(torch._C._autograd._push_saved_tensors_default_hooks, *hooks)


def _nothing() -> list[Any]:
    return []


_function_modes = getattr(torch.overrides, "_get_current_function_mode_stack", _nothing)
_dispatch_modes = getattr(
    torch.utils._python_dispatch, "_get_current_dispatch_mode_stack", _nothing
)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> Any:
    return getattr(torch, name)
