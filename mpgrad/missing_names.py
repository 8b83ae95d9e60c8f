"""What is said of a name that a module lacks: whether PyTorch has it, and what to use instead.

``pytorch_names.txt`` lists PyTorch's names, a line for each module. It is read when a lookup fails
for the first time, and ``python -m tests.pytorch_names`` writes it.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

PYTORCH = Path(__file__).with_name("pytorch_names.txt")

#: What serves in place of a name that is missing: a name that is here, or a line of code.
INSTEAD = {
    "mpgrad.bfloat16": "mpgrad.float16",
    "mpgrad.compile": "the function itself",
    "mpgrad.jit": "the function itself",
    "mpgrad.multiprocessing": "multiprocessing",
    "mpgrad.set_num_threads": "mpgrad.Engine(blas_threads=...)",
    "mpgrad.distributed": "mpgrad.Engine",
    "mpgrad.vmap": "a batch dimension",
    "mpgrad.nn.DataParallel": "mpgrad.Engine",
}
DOCUMENTATION = "https://pytorch.org/docs says what it does, dir(%s) what is here"


def missing_from(module: str) -> Callable[[str], NoReturn]:
    """The ``__getattr__`` of a module (PEP 562) that has all its names already."""

    def __getattr__(name: str) -> NoReturn:
        raise missing(module, name)

    return __getattr__


def missing(module: str, name: str) -> AttributeError:
    """The error for a ``name`` that ``module`` lacks."""
    text = f"module {module!r} has no attribute {name!r}"
    if name in _pytorch_names().get(module, ()):
        text += f": PyTorch's {name} is not in mpgrad; {_remedy(module, name)}"
    return AttributeError(text, name=name)


def _remedy(module: str, name: str) -> str:
    instead = INSTEAD.get(f"{module}.{name}")
    if instead:
        return f"use {instead}"
    here = [public for public in dir(sys.modules.get(module)) if not public.startswith("_")]
    nearest = difflib.get_close_matches(name, here, n=3, cutoff=0.7)
    says = DOCUMENTATION % module
    return f"nearest are {', '.join(nearest)}; {says}" if nearest else says


@cache
def _pytorch_names() -> dict[str, Any]:
    """The names by module, under mpgrad's names of the modules."""
    lines = (line.split() for line in PYTORCH.read_text().splitlines())
    return {f"mpgrad{module.removeprefix('torch')}": frozenset(names) for module, *names in lines}
