"""The names of ``torch.amp``, without mixed precision."""

from __future__ import annotations

import warnings
from contextlib import ContextDecorator
from typing import Any

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(ContextDecorator):
    """A block, or a decorated function, whose tensors keep their dtypes.

    Raises:
        RuntimeError: it is enabled for the CPU, which would need bfloat16.
    """

    def __init__(
        self,
        device_type: Any = "cuda",
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if isinstance(device_type, bool):  # torch.cuda.amp.autocast(enabled)
            device_type, enabled = "cuda", device_type
        if enabled and device_type == "cpu":
            raise RuntimeError(
                "autocast on the CPU needs bfloat16, which mpgrad does not have; use enabled=False"
            )
        if enabled:
            warnings.warn(
                f"mpgrad has no mixed precision on {device_type!r}: autocast is disabled",
                UserWarning,
                stacklevel=2,
            )

    def __enter__(self) -> autocast:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


def custom_fwd(fwd: Any = None, **options: Any) -> Any:
    """``fwd`` itself; without it, a decorator that returns its function."""
    return (lambda function: function) if fwd is None else fwd


custom_bwd = custom_fwd


class GradScaler:
    """Does not scale: without mixed precision gradients do not underflow."""

    def __init__(self, device: str = "cuda", *args: Any, **options: Any) -> None:
        pass

    def scale(self, outputs: Any) -> Any:
        """``outputs`` themselves."""
        return outputs

    def unscale_(self, optimizer: Any) -> None:
        """Nothing."""

    def step(self, optimizer: Any, *args: Any, **options: Any) -> Any:
        """``optimizer.step()``."""
        return optimizer.step(*args, **options)

    def update(self, new_scale: Any = None) -> None:
        """Nothing."""

    def get_scale(self) -> float:
        """1."""
        return 1.0

    def is_enabled(self) -> bool:
        """False."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """An empty dictionary: it has no state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing: it has no state."""
