"""PrintOptions: how tensors print, in this process."""

from __future__ import annotations


class PrintOptions:
    """How tensors print; the values here are PyTorch's defaults."""

    def __init__(self) -> None:
        #: Digits after the point.
        self.precision = 4
        #: With more elements the middle of each dimension is omitted.
        self.threshold: float = 1000
        #: Elements that are kept at each end then.
        self.edgeitems = 3
        #: Characters of a line.
        self.linewidth = 80
        #: Scientific notation; None: where numbers ask for it.
        self.sci_mode: bool | None = None


#: Those in force.
OPTIONS = PrintOptions()
