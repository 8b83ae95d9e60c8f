"""PrintOptions: how tensors print, in this process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PrintOptions:
    """How tensors print; the values here are PyTorch's defaults."""

    #: Digits after the point.
    precision: int = 4
    #: With more elements the middle of each dimension is omitted.
    threshold: float = 1000
    #: Elements that are kept at each end then.
    edgeitems: int = 3
    #: Characters of a line.
    linewidth: int = 80
    #: Scientific notation; None: where numbers ask for it.
    sci_mode: bool | None = None


#: Those in force.
OPTIONS = PrintOptions()
