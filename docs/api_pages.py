"""write_api_pages(): a page for each group of public names, which Sphinx fills from docstrings."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

import mpgrad

#: Title of a page -> the modules whose names it shows.
MODULES = {
    "Neural networks": ("mpgrad.nn", "mpgrad.nn.utils", "mpgrad.nn.init"),
    "Functions of neural networks": ("mpgrad.nn.functional",),
    "Optimizers": ("mpgrad.optim", "mpgrad.optim.lr_scheduler"),
    "Derivatives": ("mpgrad.autograd", "mpgrad.autograd.functional", "mpgrad.func"),
    "Data": ("mpgrad.data",),
    "Linear algebra, FFT, special functions": (
        "mpgrad.linalg",
        "mpgrad.fft",
        "mpgrad.special",
    ),
    "Distributions": ("mpgrad.distributions",),
    "Several processes and hosts": ("mpgrad.distributed", "mpgrad.distributed.rpc"),
    "Profiler": ("mpgrad.profiler",),
    "GPUs": ("mpgrad.cuda",),
    "Errors": ("mpgrad.errors",),
}

#: Names of ``mpgrad`` itself with a page of their own; all others are on the page of functions.
_ENGINE = ("Engine", "set_engine", "current_engine", "compile", "Function")


def write_api_pages(folder: Path) -> None:
    """Write ``index.rst`` and a page for each group into ``folder``.

    A file whose text stays the same is not written, so that Sphinx does not read it again.
    """
    folder.mkdir(exist_ok=True)
    shown: set[int] = set()
    pages = {
        "engine": _page("Engine, Function, compile", _entries("mpgrad", _ENGINE, shown)),
        "tensor": _page("Tensor", [".. autoclass:: mpgrad.Tensor\n   :members:\n"]),
        "functions": _page("Functions of tensors", _functions(shown)),
    }
    for title, modules in MODULES.items():
        name = title.lower().replace(",", "").replace(" ", "_")
        parts: list[str] = []
        for module in modules:
            parts += [_heading(module, "-"), *_entries(module, _names_of(module), shown)]
        pages[name] = _page(title, parts)
    listed = "\n".join(f"   {name}" for name in pages)
    pages["index"] = _page("Reference", [f".. toctree::\n   :maxdepth: 1\n\n{listed}\n"])
    for name, text in pages.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def _functions(shown: set[int]) -> Iterator[str]:
    """The names of ``mpgrad``, by the modules that define them."""
    for module, names in mpgrad._NAMES_OF.items():
        own = [name for name in names.split() if name not in (*_ENGINE, "Tensor")]
        if own and module != "math":
            yield _heading(module.rpartition(".")[2].replace("_", " "), "-")
            yield from _entries("mpgrad", own, shown)


def _names_of(module: str) -> list[str]:
    found = importlib.import_module(module)
    return list(getattr(found, "__all__", ()))


def _entries(module: str, names: Iterable[str], shown: set[int]) -> Iterator[str]:
    """A directive for each name; only the first one of an object is in the index.

    Args:
        module: where the names are.
        names: functions, classes; others are left out.
        shown: the objects that have one; grows.
    """
    home = importlib.import_module(module)
    for name in names:
        value = getattr(home, name)
        if inspect.ismodule(value) or name == "__version__":
            continue
        again = "   :no-index:\n" if id(value) in shown else ""
        if inspect.isclass(value):
            hidden = "   :exclude-members: expect, execute, execute_recorded\n"
            yield (
                f".. autoclass:: {module}.{name}\n   :members:\n"
                f"{hidden if name == 'Engine' else ''}{again}"
            )
        elif callable(value):
            yield f".. autofunction:: {module}.{name}\n{again}"
        shown.add(id(value))


def _page(title: str, parts: Iterable[str]) -> str:
    return "\n".join([_heading(title, "="), *parts])


def _heading(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}\n"
