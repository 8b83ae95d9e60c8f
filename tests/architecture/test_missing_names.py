"""A name of PyTorch's that is missing says so; a name that nobody has is an ordinary error."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import mpgrad as mg
from mpgrad.base.missing_names import INSTEAD, PYTORCH

LINES = Path(PYTORCH).read_text().splitlines()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sparse_coo_tensor", "PyTorch's sparse_coo_tensor is not in mpgrad; https://pytorch.org"),
        (
            "as_strided_copy",
            "nearest are as_strided_, as_strided, as_strided_scatter; https://pytorch",
        ),
        ("jit", "PyTorch's jit is not in mpgrad; use the function itself"),
        (
            "nn.CrossMapLRN2d",
            "module 'mpgrad.nn' has no attribute 'CrossMapLRN2d': PyTorch's CrossMapLRN2d is",
        ),
        ("nn.functional.grouped_mm", "PyTorch's grouped_mm is not in mpgrad"),
        ("nn.utils.skip_init", "PyTorch's skip_init is not in mpgrad"),
        ("optim.SparseAdam", "PyTorch's SparseAdam is not in mpgrad"),
        ("autograd.forward_ad", "PyTorch's forward_ad is not in mpgrad"),
    ],
)
def test_a_name_of_pytorch_says_that_it_is_missing(name: str, message: str) -> None:
    place, _, last = f"mpgrad.{name}".rpartition(".")
    module = importlib.import_module(place)
    with pytest.raises(AttributeError, match=message):
        getattr(module, last)
    assert not hasattr(module, last)
    assert getattr(module, last, None) is None


@pytest.mark.parametrize("module", [mg, mg.nn, mg.nn.functional, mg.optim, mg.autograd])
def test_a_name_that_nobody_has_is_an_ordinary_error(module: object) -> None:
    with pytest.raises(AttributeError) as caught:
        module.tensro  # type: ignore[attr-defined]  # noqa: B018
    assert str(caught.value).endswith("has no attribute 'tensro'")


def test_the_traceback_of_a_misspelt_name_asks_for_the_nearest() -> None:
    for code, nearest in (("mpgrad.Tesnor", "Tensor"), ("mpgrad.nn.Liner", "Linear")):
        command = [sys.executable, "-c", f"import mpgrad; {code}"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.stderr.endswith(f"Did you mean: '{nearest}'?\n")


def test_importing_it_is_an_import_error() -> None:
    with pytest.raises(ImportError, match="cannot import name 'sparse_coo_tensor'"):
        from mpgrad import sparse_coo_tensor  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.parametrize("name", INSTEAD)
def test_what_is_named_instead_is_here_and_what_it_replaces_is_not(name: str) -> None:
    assert _found(name) is None, f"{name} is here: take it out of INSTEAD"
    place, _, last = name.rpartition(".")
    (line,) = (
        line
        for line in Path(PYTORCH).read_text().splitlines()
        if f"mpgrad{line.split()[0][5:]}" == place
    )
    assert last in line.split()
    instead = INSTEAD[name].split()[0].partition("(")[0]
    if instead.startswith("mpgrad."):
        assert _found(instead) is not None


def _found(name: str) -> object:
    found: object = mg
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return found


@pytest.mark.slow
def test_the_list_is_what_pytorch_has() -> None:
    torch = pytest.importorskip("torch")
    if not torch.__version__.startswith("2.13"):
        pytest.skip("the list is of PyTorch 2.13")
    from tests.pytorch_names import MODULES, names_of

    assert len(names_of("torch")) > 900
    for line, module in zip(LINES, MODULES, strict=True):
        listed, *names = line.split()
        # What torch imports later belongs to it as well.
        assert (listed, set(names) - names_of(module)) == (module, set())
