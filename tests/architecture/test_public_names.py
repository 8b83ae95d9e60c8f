"""The public names: all there, the same for type checkers, and nothing loaded before its use."""

from __future__ import annotations

import gc
import inspect
import pickle
import subprocess
import sys

import pytest
from source_tree import files

import mpgrad
from tests.stubs import stubs


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


#: Modules of which users know the names.
MODULES = [
    mpgrad.autograd, mpgrad.cuda, mpgrad.data, mpgrad.distributed, mpgrad.distributions, mpgrad.fft,
    mpgrad.func, mpgrad.linalg, mpgrad.nn, mpgrad.nn.functional, mpgrad.optim, mpgrad.profiler,
    mpgrad.special, mpgrad,
]  # fmt: skip


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_what_users_call_has_a_docstring(module) -> None:
    public = {name: getattr(module, name) for name in module.__all__}
    without = [
        name
        for name, value in public.items()
        if callable(value) and not (value.__doc__ or "").strip()
    ]
    assert without == []


def test_everything_of_a_tensor_has_a_docstring() -> None:
    names = [name for name in dir(mpgrad.Tensor) if not name.startswith("_")]
    without = [name for name in names if not inspect.getdoc(getattr(mpgrad.Tensor, name))]
    assert without == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'mpgrad' has no attribute 'tensro'"):
        mpgrad.tensro  # noqa: B018


@pytest.mark.slow
def test_the_stubs_say_what_is_there() -> None:
    stale = [str(path) for path, text in stubs() if path.read_text() != text]
    assert stale == [], "python -m tests.stubs writes them"


@pytest.mark.parametrize(
    "module",
    [
        "mpgrad",
        "mpgrad.scheduler",
        "mpgrad.autograd",
        "mpgrad.launch.cli",
        "mpgrad.compat.script",
        "mpgrad.base.config",
        "mpgrad.no_grad",
        pytest.param(
            "mpgrad.coordinator.coordinator",
            marks=pytest.mark.skipif(
                "coordinator/coordinator.py" not in files(), reason="there is no coordinator yet"
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
    # Such as autograd/backward.py and autograd.backward(...).
    source = (
        "import mpgrad.recording.tensors.tensor, mpgrad.autograd.backward, mpgrad\n"
        "print(callable(mpgrad.tensor), callable(mpgrad.autograd.backward))"
    )
    assert run_python(source) == "True True"


def test_the_version_is_the_installed_one() -> None:
    metadata = pytest.importorskip("importlib.metadata")
    try:
        installed = metadata.version("mpgrad")
    except metadata.PackageNotFoundError:
        pytest.skip("mpgrad runs from its source tree, not installed")
    assert mpgrad.__version__ == installed


@pytest.mark.parametrize("kind", [mpgrad.Tensor, mpgrad.Device, mpgrad.Size])
def test_files_with_tensors_name_types_as_users_do(kind: type) -> None:
    # Where the classes are written may change from release to release.
    assert pickle.dumps(kind, protocol=0).split(b"\n")[0] == b"cmpgrad"


@pytest.mark.slow
def test_the_first_tensor_loads_no_module_that_it_does_not_need() -> None:
    # Each of these takes a part of the time of `import numpy`, with what it loads in turn.
    heavy = {"difflib", "pathlib", "pkgutil", "secrets", "hashlib", "zmq", "msgspec", "cloudpickle"}
    loaded = run_python(
        "import sys, numpy\nbefore = set(sys.modules)\n"
        "import mpgrad as mg\nmg.tensor([1.0])\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    assert heavy & set(loaded.split()) == set()


def test_loading_leaves_the_garbage_collector_nothing_to_walk() -> None:
    # A collection of all that was just loaded took 5 ms.
    source = """
import gc, numpy, mpgrad
before = gc.get_stats()[0]["collections"]
mpgrad.tensor
print(gc.get_stats()[0]["collections"] - before, gc.get_freeze_count(), gc.isenabled())
"""
    assert run_python(source) == "0 0 True"


def test_a_name_of_a_loaded_module_counts_no_frozen_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The count walks all of them.
    assert mpgrad.mul is not None
    monkeypatch.delitem(vars(mpgrad), "mul")
    monkeypatch.delattr(gc, "get_freeze_count")
    assert mpgrad.mul is not None


def test_what_a_program_has_frozen_stays_frozen() -> None:
    source = """
import gc, numpy, mpgrad
gc.freeze()
before = gc.get_freeze_count()
mpgrad.tensor
print(gc.get_freeze_count() == before > 0)
"""
    assert run_python(source) == "True"
