"""The documented list of array functions is what operators use, and what CpuBackend defines."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import mpgrad.backends
from mpgrad import ops
from mpgrad.arrays.cpu.cpu_backend import CpuBackend
from mpgrad.ops import differentiable

#: The words of the table in the package's docstring, between its two outer rulers.
LISTED = set(re.findall(r"\w+", re.split(r"(?m)^===.*$", mpgrad.backends.__doc__ or "")[1]))


def used_by_operators() -> set[str]:
    sources = Path(ops.__path__[0]).glob("*.py")
    return {name for file in sources for name in re.findall(r"\bxp\.(\w+)", file.read_text())}


def test_operators_use_listed_functions_only() -> None:
    assert used_by_operators() - LISTED == set()


def test_the_backend_defines_what_operators_use_instead_of_falling_back_to_numpy() -> None:
    assert {name for name in used_by_operators() if not hasattr(CpuBackend, name)} == set()


def test_what_has_no_differentiable_form_says_so() -> None:
    with pytest.raises(NotImplementedError, match="uses 'max_pool2d' is not implemented"):
        differentiable.max_pool2d  # noqa: B018


def test_everything_else_of_numpy_is_reachable() -> None:
    assert CpuBackend(np.empty).pi == np.pi
