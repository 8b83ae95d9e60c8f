"""Our CUDA kernels compute what their equivalents in NumPy do.

Their code is plain C++ but for the loop around it, so that a compiler for the host can run it.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from mpgrad.arrays.cpu import cpu_windows
from mpgrad.arrays.cpu.cpu_backend import CpuBackend
from mpgrad.arrays.cuda.cuda_kernels import SOURCES, KernelSource
from tests.cuda.fake_driver.kernels import KERNELS

#: What T stands for: by the end of a function's name.
SCALARS = {"f4": "float", "f8": "double", "c16": "std::complex<double>"}

RNG = np.random.default_rng(0)


class Parameter(NamedTuple):
    """One of a kernel."""

    kind: str
    name: str
    #: The kernel sees the whole array, not the element of its thread.
    is_whole: bool
    is_array: bool


def parameters(source: KernelSource) -> list[Parameter]:
    found = []
    for text, is_output in ((source.inputs, False), (source.outputs, True)):
        for parameter in text.split(","):
            *raw, kind, name = parameter.split()
            found.append(Parameter(kind, name, bool(raw), bool(raw or is_output or kind == "T")))
    return found


def c_function(name: str, source: KernelSource, scalar: str) -> str:
    """The kernel as a C function that goes through all threads one after another."""
    kinds = {"T": scalar, "int64": "long long", "bool": "bool"}
    arguments, elements = ["long long threads"], []
    for kind, parameter, is_whole, is_array in parameters(source):
        kind = kinds[kind]
        if is_array and not is_whole:
            elements.append(f"{kind}& {parameter} = all_{parameter}[i];")
            parameter = f"all_{parameter}"
        arguments.append(f"{kind}{'*' if is_array else ''} {parameter}")
    return f"""
        extern "C" void {name}({", ".join(arguments)}) {{
            typedef {scalar} T;
            for (long long i = 0; i < threads; ++i) {{ {" ".join(elements)} {source.code}; }}
        }}"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    directory: Path = tmp_path_factory.mktemp("kernels")
    functions = [
        c_function(f"{name}_{ending}", source, scalar)
        for name, source in SOURCES.items()
        for ending, scalar in SCALARS.items()
        if _takes(name, ending)
    ]
    code = "#include <cmath>\n#include <complex>\nusing namespace std;\n" + "\n".join(functions)
    (directory / "kernels.cpp").write_text(code)
    # Without fused multiply-add, which NumPy does not use either.
    flags = ["-O1", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", "kernels.so", "kernels.cpp"], cwd=directory, check=True)
    return ctypes.CDLL(str(directory / "kernels.so"))


def _takes(name: str, ending: str) -> bool:
    is_complex = ending == "c16"
    return name not in (
        ("mpgrad_max_pool", "mpgrad_avg_pool") if is_complex else ("mpgrad_complex_sign",)
    )


def run(library: Any, name: str, threads: int, *args: Any) -> None:
    """Call the C function; its outputs are the last of ``args``."""
    ending = next(a.dtype.str[1:] for a in args if isinstance(a, np.ndarray) and a.dtype != "i8")
    given = [
        ctypes.c_void_p(value.ctypes.data)
        if isinstance(value, np.ndarray)
        else ctypes.c_bool(value)
        if isinstance(value, bool)
        else ctypes.c_longlong(value)
        for value in args
    ]
    getattr(library, f"{name}_{ending}")(ctypes.c_longlong(threads), *given)


def compare(library: Any, name: str, threads: int, inputs: list[Any], *outputs: Any) -> None:
    """Run the kernel and its equivalent, each on outputs of its own."""
    expected = [output.copy() for output in outputs]
    KERNELS[name](*inputs, *expected)
    run(library, name, threads, *inputs, *outputs)
    for ours, theirs in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def draw(*shape: int, dtype: str = "f4") -> np.ndarray:
    values = RNG.normal(size=shape)
    return np.asarray(values + 1j * RNG.normal(size=shape) if dtype == "c16" else values, dtype)


#: kernel, stride, padding, dilation; the image is 7 x 6.
GEOMETRIES = (
    ((2, 2), (2, 2), (0, 0), (1, 1)),
    ((3, 2), (1, 2), (1, 1), (1, 1)),
    ((3, 3), (2, 1), (1, 0), (2, 2)),
)


def sizes(kernel: Any, stride: Any, padding: Any, dilation: Any) -> tuple[int, ...]:
    """Height, width, and those of the windows."""
    lengths = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip((7, 6), kernel, stride, padding, dilation, strict=True)
    ]
    return (7, 6, *lengths)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_max_pool(library: Any, geometry: Any) -> None:
    given = sizes(*geometry)
    images = np.round(draw(2, 3, 7, 6), 1)
    images[0, 0, 3, 3:5] = np.nan
    shape = (2, 3, *given[2:])
    inputs = [images, *given, *(n for pair in geometry for n in pair)]
    outputs = (np.empty(shape, "f4"), np.empty(shape, "i8"))
    compare(library, "mpgrad_max_pool", outputs[0].size, inputs, *outputs)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_max_pool_grad(library: Any, geometry: Any) -> None:
    given = sizes(*geometry)
    (kernel, stride, padding, dilation), images = geometry, np.round(draw(2, 3, 7, 6), 1)
    _, positions = cpu_windows.max_pool2d(
        CpuBackend(np.empty), images, kernel=kernel, stride=stride, padding=padding,
        dilation=dilation,
    )  # fmt: skip
    inputs = [draw(*positions.shape), positions, *given, *(n for pair in geometry for n in pair)]
    compare(library, "mpgrad_max_pool_grad", images.size, inputs, np.empty_like(images))


@pytest.mark.parametrize("counts_padding", [True, False])
@pytest.mark.parametrize("geometry", GEOMETRIES[:2])
def test_avg_pool(library: Any, geometry: Any, counts_padding: bool) -> None:
    given = sizes(*geometry)
    numbers = [*given, *(n for pair in geometry[:3] for n in pair)]
    out = np.empty((2, 3, *given[2:]), "f8")
    images = draw(2, 3, 7, 6, dtype="f8")
    compare(library, "mpgrad_avg_pool", out.size, [images, *numbers, counts_padding], out)
    grad = np.empty(images.shape, "f8")
    compare(library, "mpgrad_avg_pool_grad", grad.size, [out, *numbers], grad)


@pytest.mark.parametrize("dtype", ["f4", "c16"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_columns_to_image(library: Any, geometry: Any, dtype: str) -> None:
    given = sizes(*geometry)
    columns = draw(2, 3, *geometry[0], *given[2:], dtype=dtype)
    out = np.empty((2, 3, 7, 6), dtype)
    numbers = [*given, *(n for pair in geometry for n in pair)]
    compare(library, "mpgrad_columns_to_image", out.size, [columns, *numbers], out)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_add_runs(library: Any, width: int, dtype: str) -> None:
    places = RNG.integers(0, 6, 40)
    order = np.argsort(places, kind="stable")
    values, out = draw(40, width, dtype=dtype), np.zeros((7, width), dtype)
    inputs = [places[order], order, values, 40, width]
    compare(library, "mpgrad_add_runs", 40 * width, inputs, out)


@pytest.mark.parametrize("inner", [1, 3])
def test_add_lines(library: Any, inner: int) -> None:
    values, indices = draw(4, 9, inner, dtype="f8"), RNG.integers(-5, 5, (4, 9, inner))
    out = np.zeros((4, 5, inner))
    compare(library, "mpgrad_add_lines", 4 * inner, [values, indices, 9, 5, inner], out)


def test_complex_sign(library: Any) -> None:
    x = np.append(draw(20, dtype="c16"), [0, 3, -2j])
    out, expected = np.empty_like(x), np.sign(x)
    run(library, "mpgrad_complex_sign", x.size, x, out)
    np.testing.assert_allclose(out, expected, rtol=1e-15)
