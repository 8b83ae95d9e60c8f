"""Writes the list of PyTorch's public names: ``python -m tests.pytorch_names``.

It is the data of ``mpgrad.base.missing_names``, so that an error can say that PyTorch has a name.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from mpgrad.base.missing_names import PYTORCH

MODULES = (
    "torch",
    "torch.autograd",
    "torch.cuda",
    "torch.distributions",
    "torch.fft",
    "torch.linalg",
    "torch.nn",
    "torch.nn.functional",
    "torch.nn.init",
    "torch.nn.utils",
    "torch.optim",
    "torch.optim.lr_scheduler",
    "torch.special",
    "torch.utils",
    "torch.utils.data",
)


def listed() -> str:
    """What has to stand in the file: for each module a line of it and its names."""
    return "".join(f"{name} {' '.join(sorted(names_of(name)))}\n" for name in MODULES)


def names_of(name: str) -> set[str]:
    """The public names of a module of PyTorch, without what it imports from elsewhere."""
    module = importlib.import_module(name)
    return {
        public
        for public in (*dir(module), *getattr(module, "__all__", ()))
        if not public.startswith("_") and _is_pytorchs(getattr(module, public, None), name, public)
    }


def _is_pytorchs(value: object, module: str, name: str) -> bool:
    if isinstance(value, ModuleType):
        return value.__name__ == f"{module}.{name}"
    home = getattr(value, "__module__", None)
    return not isinstance(home, str) or home.split(".")[0] in ("torch", "builtins")


if __name__ == "__main__":
    Path(PYTORCH).write_text(listed())
    print(PYTORCH)
