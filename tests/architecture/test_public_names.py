"""The public names: all there, the same for type checkers, and nothing loaded before its use."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from source_tree import PACKAGE, files

import mpgrad


def run_python(source: str) -> str:
    """What ``source`` prints in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", mpgrad.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(mpgrad, name) is not None
    assert name in dir(mpgrad)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'mpgrad' has no attribute 'tensro'"):
        mpgrad.tensro  # noqa: B018


def test_the_stub_says_the_same_names() -> None:
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    said = {
        alias.asname
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    said |= {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}
    assert said == set(mpgrad.__all__)


@pytest.mark.parametrize(
    "module",
    [
        "mpgrad",
        "mpgrad.scheduler",
        "mpgrad.autograd",
        "mpgrad.launch.cli",
        "mpgrad.launch.script",
        "mpgrad.config",
        "mpgrad.no_grad",
        pytest.param(
            "mpgrad.coordinator.process",
            marks=pytest.mark.skipif(
                "coordinator/process.py" not in files(), reason="there is no coordinator yet"
            ),
        ),
    ],
)
def test_importing_loads_no_array_library(module: str) -> None:
    package, _, name = module.rpartition(".")
    statement = f"from {package} import {name}" if package else f"import {name}"
    heavy = ["numpy", "cupy", "zmq"]
    loaded = run_python(f"import sys\n{statement}\nprint([m for m in {heavy} if m in sys.modules])")
    assert loaded == "[]"


def test_a_submodule_does_not_hide_the_name_it_shares() -> None:
    # mpgrad/tensor.py and mpgrad.tensor(...); autograd/backward.py and autograd.backward(...)
    source = (
        "import mpgrad.tensor, mpgrad.autograd.backward, mpgrad\n"
        "print(callable(mpgrad.tensor), callable(mpgrad.autograd.backward))"
    )
    assert run_python(source) == "True True"


def test_the_stub_of_tensor_says_what_is_attached() -> None:
    attached = run_python(
        "from mpgrad.tensor import Tensor\n"
        "own = dict(vars(Tensor))\n"
        "import mpgrad.tensor_methods\n"
        "print(*(n for n, m in vars(Tensor).items() if own.get(n) is not m))"
    )
    stub = ast.parse((PACKAGE / "tensor_members.pyi").read_text())
    (members,) = (node for node in stub.body if isinstance(node, ast.ClassDef))
    said = {node.name for node in members.body if isinstance(node, ast.FunctionDef)}
    # What every object has, and what only pickle and copy call, needs no declaration.
    undeclared = {*vars(object), "__copy__", "__deepcopy__", "__setstate__"}
    assert said - undeclared == set(attached.split()) - undeclared


def test_the_version_is_the_installed_one() -> None:
    metadata = pytest.importorskip("importlib.metadata")
    try:
        installed = metadata.version("mpgrad")
    except metadata.PackageNotFoundError:
        pytest.skip("mpgrad runs from its source tree, not installed")
    assert mpgrad.__version__ == installed
