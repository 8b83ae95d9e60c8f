"""Device names as PyTorch writes them: ``"cpu"``, ``"cuda"``, ``"cuda:1"``."""

from __future__ import annotations

from typing import NamedTuple


class Device(NamedTuple):
    """Where a tensor's bytes lie; a tuple, because it is hashed with every cost that is looked up.

    Attributes:
        type: "cpu" or "cuda".
        index: which one of that type; None means the only one.
    """

    type: str
    index: int | None = None  # type: ignore[assignment]  # hides tuple.index, as intended

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"device(type='{self.type}'" + (
            ")" if self.index is None else f", index={self.index})"
        )


CPU = Device("cpu")


def as_device(device: Device | str | None) -> Device:
    """Parse ``device``; None means the CPU.

    Raises:
        RuntimeError: the name is not a device that mpgrad knows.
    """
    if device is None or str(device) == "cpu":
        return CPU
    if isinstance(device, Device):
        return device
    kind, _, index = str(device).partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise RuntimeError(
            f"Expected one of cpu, cuda device type at start of device string: {device!r}"
        )
    if kind == "cpu":
        return CPU
    return Device("cuda", int(index) if index else 0)
