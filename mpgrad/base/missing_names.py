"""The error for a name that a module lacks: whether PyTorch has it, and what to use instead.

``pytorch_names.txt`` lists PyTorch's names, a line for each module. It is read when a lookup fails
for the first time; ``python -m tests.pytorch_names`` writes it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, NoReturn

PYTORCH = os.path.join(os.path.dirname(__file__), "pytorch_names.txt")

#: The replacement of a missing name: another name, or a line of code.
INSTEAD = {
    "mpgrad.bfloat16": "mpgrad.float16",
    "mpgrad.jit": "the function itself",
    "mpgrad.set_num_threads": "mpgrad.Engine(blas_threads=...)",
}
DOCUMENTATION = "https://pytorch.org/docs says what it does, dir(%s) what is here"


def missing_from(module: str) -> Callable[[str], NoReturn]:
    """The ``__getattr__`` of a module (PEP 562) without further names."""

    def __getattr__(name: str) -> NoReturn:
        raise missing(module, name)

    return __getattr__


def missing(module: str, name: str) -> AttributeError:
    """The error for a ``name`` that ``module`` lacks."""
    # With the module, Python's traceback asks "Did you mean ...?".
    return AttributeError(_Text(module, name), name=name, obj=sys.modules.get(module))


class _Text(NamedTuple):
    """The text of the error, made when it is read: each ``from package import module`` first looks
    up such an attribute of the package, and this must be cheap."""

    module: str
    name: str

    def __str__(self) -> str:
        text = f"module {self.module!r} has no attribute {self.name!r}"
        if self.name in _pytorch_names().get(self.module, ()):
            text += f": PyTorch's {self.name} is not in mpgrad; {_remedy(self.module, self.name)}"
        return text


def _remedy(module: str, name: str) -> str:
    instead = INSTEAD.get(f"{module}.{name}")
    if instead:
        return f"use {instead}"
    import difflib  # imported here: ``import mpgrad`` does not need it

    here = [public for public in dir(sys.modules.get(module)) if not public.startswith("_")]
    nearest = difflib.get_close_matches(name, here, n=3, cutoff=0.7)
    says = DOCUMENTATION % module
    return f"nearest are {', '.join(nearest)}; {says}" if nearest else says


@cache
def _pytorch_names() -> dict[str, Any]:
    """The names by module, with mpgrad's names of the modules."""
    with open(PYTORCH) as file:
        lines = [line.split() for line in file]
    return {f"mpgrad{module.removeprefix('torch')}": frozenset(names) for module, *names in lines}
