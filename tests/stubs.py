"""Writes the stubs of mpgrad, for editors and type checkers: ``python -m tests.stubs``.

Packages load their names on first use, and ``tensor_methods`` attaches most of Tensor's members:
neither can be seen without running them. What runs is the source; a test compares.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import mpgrad.tensor_methods  # noqa: F401  (attaches)
from mpgrad.recording.tensors.tensor import Tensor

#: The file of the class Tensor.
TENSOR = Path(inspect.getfile(Tensor.__init__))

#: Packages whose names are loaded on first use.
LAZY = (
    "mpgrad",
    "mpgrad.autograd",
    "mpgrad.distributed",
    "mpgrad.distributed.autograd",
    "mpgrad.distributed.optim",
    "mpgrad.distributed.rpc",
    "mpgrad.utils",
)

#: Special methods of every object that mean something else for Tensors.
COMPARISONS = frozenset({"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"})
#: What only pickle and copy call.
UNDECLARED = frozenset({*vars(object), "__copy__", "__deepcopy__", "__setstate__"}) - COMPARISONS


def stubs() -> Iterator[tuple[Path, str]]:
    """Each stub's file and what has to stand in it."""
    for name in LAZY:
        package = importlib.import_module(name)
        assert package.__file__ is not None
        yield Path(package.__file__).with_suffix(".pyi"), formatted(of_package(package))
    yield TENSOR.with_name("tensor_members.pyi"), formatted(of_tensor())


def formatted(text: str) -> str:
    """``text`` as ``scripts/check`` wants it."""
    for command in (("check", "--select", "I", "--fix", "--quiet"), ("format",)):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", "stub.pyi", "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return text


# ---------------------------------------------------------------------------- packages


def of_package(package: ModuleType) -> str:
    """The stub of a package that loads its names on first use."""
    name = package.__name__
    lines = [f'"""The public names of {name}, which ``__init__.py`` loads on first use."""', ""]
    modules = getattr(package, "_SUBMODULES", ())
    lines += [f"from {name} import {module} as {module}" for module in modules]
    for public, home in getattr(package, "_HOME", {}).items():
        lines.append(f"from {home} import {public} as {public}")
    if hasattr(package, "__version__"):
        lines += ["", "__version__: str"]
    return "\n".join([*lines, ""])


# ---------------------------------------------------------------------------- Tensor


def of_tensor() -> str:
    """The stub of what ``tensor_methods`` attaches to Tensor, as a class that Tensor inherits."""
    written = _written_in_the_class()
    members = {
        name: member
        for name, member in sorted(vars(Tensor).items())
        if isinstance(member, FunctionType | property | classmethod)
        and name not in written | UNDECLARED
    }
    imports = {"import builtins", "import numpy as np"}
    body = [line for name, member in members.items() for line in _member(name, member, imports)]
    return "\n".join(
        [
            '"""What ``tensor_methods`` attaches to Tensor.',
            "",
            "Tensor inherits it for type checkers alone: at run time there is no such module.",
            '"""',
            "",
            *sorted(imports),
            "",
            "class TensorMembers:",
            *body,
            "",
        ]
    )


def _written_in_the_class() -> set[str]:
    """The names that stand in the body of Tensor."""
    module = ast.parse(TENSOR.read_text())
    (body,) = (
        node.body
        for node in module.body
        if isinstance(node, ast.ClassDef) and node.name == Tensor.__name__
    )
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def _member(name: str, member: Any, imports: set[str]) -> Iterator[str]:
    """The lines that declare one member; what they need is added to ``imports``."""
    if isinstance(member, property):
        yield "    @property"
        yield _function(name, member.fget, imports)
        if member.fset is not None:
            yield f"    @{name}.setter"
            yield _function(name, member.fset, imports)
        return
    if isinstance(member, classmethod):
        yield "    @classmethod"
        member = member.__func__
    yield _function(name, member, imports)


def _function(name: str, function: Callable[..., Any], imports: set[str]) -> str:
    signature = inspect.signature(function)
    home = inspect.unwrap(function).__module__
    first, *others = signature.parameters.values()
    if first.kind is inspect.Parameter.VAR_POSITIONAL:
        others = [first, *others]
    words = ["cls" if first.name == "cls" else "self"]
    words += [_parameter(other, _annotation(other.annotation, home, imports)) for other in others]
    kinds = [first.kind, *(other.kind for other in others)]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        words.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    result = _annotation(signature.return_annotation, home, imports)
    ignored = "  # type: ignore[override]" if name in ("__eq__", "__ne__") else ""
    return f"    def {name}({', '.join(words)}) -> {result}: ...{ignored}"


def _parameter(parameter: inspect.Parameter, annotation: str) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    text = f"{stars.get(parameter.kind, '')}{parameter.name}: {annotation}"
    if parameter.default is not inspect.Parameter.empty:
        is_literal = isinstance(parameter.default, int | float | str | None | tuple)
        text += f" = {parameter.default!r}" if is_literal else " = ..."
    return text


def _annotation(annotation: Any, home: str, imports: set[str]) -> str:
    """An annotation of module ``home``, where members of Tensor hide builtins of their names."""
    if annotation is inspect.Signature.empty:
        imports.add("from typing import Any")
        return "Any"

    class Qualified(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Name:
            if node.id in _names_of(home):
                imports.add(f"from {_names_of(home)[node.id]} import {node.id}")
            elif hasattr(builtins, node.id) and hasattr(Tensor, node.id):
                return ast.Name(f"builtins.{node.id}")
            return node

    return ast.unparse(Qualified().visit(ast.parse(annotation, mode="eval")))


@functools.cache
def _names_of(module: str) -> dict[str, str]:
    """What a module imports from others and what it defines, for type checkers alone or not, by
    the module that it comes from."""
    names = {}
    for node in ast.walk(ast.parse(inspect.getsource(importlib.import_module(module)))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.update({alias.asname or alias.name: node.module for alias in node.names})
        elif isinstance(node, ast.ClassDef):
            names[node.name] = module
    return names


if __name__ == "__main__":
    for path, text in stubs():
        path.write_text(text)
        print(path)
