"""Reads the package's source as syntax trees, for the tests of its structure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "mpgrad"

#: The folders of the pure core: what one host decides, and what several decide together.
PURE = ("scheduler/", "distributed/states/")


@dataclass(frozen=True)
class Import:
    """One imported module, as written in ``file`` (relative to the package)."""

    file: str
    line: int
    module: str
    type_checking: bool


@cache
def files() -> tuple[str, ...]:
    """Every Python file of the package, relative to it, in order."""
    return tuple(sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")))


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text(), file)


@cache
def imports(file: str) -> tuple[Import, ...]:
    """All imports of ``file``: at its top, inside functions, and by constant name."""
    return tuple(_imports(file, tree(file), False))


def _imports(file: str, node: ast.AST, type_checking: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(file, node.lineno, alias.name, type_checking)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{file}:{node.lineno}: a relative import"
        for alias in node.names:
            yield Import(file, node.lineno, f"{node.module}.{alias.name}", type_checking)
    elif _is_import_by_name(node):
        yield Import(file, node.lineno, node.args[0].value, type_checking)
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.body:
            yield from _imports(file, child, True)
        children = node.orelse
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _imports(file, child, type_checking)


def _is_import_by_name(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("importlib.import_module", "import_module", "__import__")
        and bool(node.args)
        and isinstance(node.args[0], ast.Constant)
    )


@cache
def file_of(module: str) -> str | None:
    """The package's file that ``mpgrad.a.b`` or ``mpgrad.a.b.name`` is in; None for others."""
    parts = module.split(".")
    if parts[0] != "mpgrad":
        return None
    for length in range(len(parts), 0, -1):
        path = "/".join(parts[1:length])
        for candidate in (f"{path}.py", f"{path}/__init__.py".lstrip("/")):
            if candidate in files():
                return candidate
    return None


def late_imports(file: str) -> Iterator[Import]:
    """Those that run when a function is called."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                yield from _imports(file, statement, False)
