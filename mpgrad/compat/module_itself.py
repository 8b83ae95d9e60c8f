"""DataParallel as PyTorch has it on a machine without GPUs: it runs the Module itself."""

from __future__ import annotations

from typing import Any

from mpgrad.nn.module import Module

__all__ = ["DataParallel"]


class ModuleItself(Module):
    """A Module under the name ``module``, which runs on the device where it lies.

    A program that was written for PyTorch must get PyTorch's numbers; ``mpgrad.nn.DataParallel``
    runs parts of a batch in workers.

    Args:
        module: the Module.
        device_ids: without effect, as are ``output_device`` and ``dim``.
    """

    def __init__(
        self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0
    ) -> None:
        super().__init__()
        self.module, self.dim = module, dim
        self.device_ids, self.output_device = device_ids, output_device

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """What ``module`` gives."""
        return self.module(*inputs, **kwargs)


DataParallel = ModuleItself
DataParallel.__name__ = DataParallel.__qualname__ = "DataParallel"
