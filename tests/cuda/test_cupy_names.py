"""What the fake of CuPy offers is what CuPy has. CuPy can be imported without a GPU."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

import pytest

from mpgrad.arrays.cuda.cuda_kernels import SOURCES
from tests.cuda.fake_driver.arrays import ndarray
from tests.cuda.fake_driver.driver import FakeCudaDriver
from tests.cuda.fake_driver.kernels import KERNELS
from tests.cuda.fake_driver.namespace import (
    CREATION,
    FUNCTIONS,
    LIKE,
    SPECIAL,
    UFUNCS,
    ArrayNamespace,
    SpecialFunctions,
)


def test_every_kernel_has_its_equivalent_in_numpy() -> None:
    assert set(KERNELS) == set(SOURCES)


def test_cupy_has_every_name_of_the_fake() -> None:
    cupy = pytest.importorskip("cupy")
    own = {name for name in vars(ArrayNamespace) if not name.startswith("_")}
    names = {*own, *f"{UFUNCS} {FUNCTIONS} {CREATION} {LIKE}".split()}
    assert {name for name in names if not hasattr(cupy, name)} == set()
    methods = {name for name in dir(ndarray) if not name.startswith("_")}
    assert {name for name in methods if not hasattr(cupy.ndarray, name)} == set()
    special = pytest.importorskip("cupyx.scipy.special")
    names = {name for name in vars(SpecialFunctions) if not name.startswith("_")}
    assert all(isinstance(getattr(special, name), cupy.ufunc) for name in names)
    assert [name for name in SPECIAL.split() if not hasattr(special, name)] == []
    assert all(isinstance(getattr(cupy, name), cupy.ufunc) for name in UFUNCS.split())


def test_cupy_takes_the_parameters_of_our_kernels() -> None:
    cupy = pytest.importorskip("cupy")
    for name, source in SOURCES.items():
        kernel = cupy.ElementwiseKernel(*source, name)
        fake = FakeCudaDriver(1).namespace.ElementwiseKernel(*source, name)
        assert kernel.nargs == fake._count


def test_cupy_has_every_name_of_the_driver() -> None:
    cupy = pytest.importorskip("cupy")
    names = set(re.findall(r"\b(cupy(?:\.\w+)+|_runtime\.\w+)", inspect.getsource(cuda_cupy())))
    assert len(names) > 20
    for name in names:
        found = cupy
        for part in name.replace("_runtime", "cupy.cuda.runtime").split(".")[1:]:
            found = getattr(found, part)


def cuda_cupy() -> ModuleType:
    from mpgrad.arrays.cuda import cuda_cupy

    return cuda_cupy
