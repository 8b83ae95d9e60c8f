"""Device names as PyTorch writes them: ``"cpu"``, ``"cuda"``, ``"cuda:1"``."""

from __future__ import annotations

from typing import Any, NamedTuple

from mpgrad.base.thread_state import PerThread


class _Fields(NamedTuple):
    type: str
    index: int | None = None  # type: ignore[assignment]  # hides tuple.index, as intended


#: One object for each device, so that ``is`` can be used for comparisons.
_known: dict[tuple[str, int | None], Device] = {}


class Device(_Fields):
    """A device of tensors; a tuple, because it is hashed as part of every key of a cost.

    ``Device("cuda:1")`` and ``Device("cuda", 1)`` are the same.

    Attributes:
        type: "cpu" or "cuda".
        index: the number of the GPU; None means the thread's current one, or the CPU.

    Raises:
        RuntimeError: mpgrad does not know the device.
    """

    __slots__ = ()
    __module__ = "mpgrad"

    def __new__(cls, type: str, index: int | None = None) -> Device:
        kind, colon, number = str(type).partition(":")
        if kind not in ("cpu", "cuda") or (colon and (index is not None or not number.isdigit())):
            raise RuntimeError(
                f"Expected one of cpu, cuda device type at start of device string: {type!r}"
            )
        if kind == "cpu":
            index = None
        elif number:
            index = int(number)
        known = _known.get((kind, index))
        if known is None:
            known = _known[kind, index] = super().__new__(cls, kind, index)
        return known

    def __enter__(self) -> Device:
        """Make new tensors of this thread here, until the end of the ``with``."""
        default.outer = (*default.outer, default.device)
        default.device = self
        return self

    def __exit__(self, *_: Any) -> None:
        *outer, default.device = default.outer
        default.outer = tuple(outer)

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"device(type='{self.type}'" + (
            ")" if self.index is None else f", index={self.index})"
        )


#: The same class under PyTorch's name.
device = Device

CPU = Device("cpu")


class _Default(PerThread):
    """The device of new tensors in this thread, and those outside of the ``with`` that are open."""

    device = CPU
    outer: tuple[Device, ...] = ()


default = _Default()


def as_device(device: Device | str | None) -> Device:
    """Parse ``device``; None means the CPU.

    Raises:
        RuntimeError: mpgrad does not know a device of this name.
    """
    if device is None:
        return CPU
    return device if isinstance(device, Device) else Device(device)
