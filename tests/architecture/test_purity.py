"""The scheduler decides the same under every hash seed and at every hour.

Its order may depend on its events only, so nothing in it walks over a set, asks the time, or uses
an object's address or hash.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from source_tree import PURE, files, tree

IMPURE_CALLS = frozenset({"id", "hash", "open", "print", "input"})
SET_MAKERS = frozenset({"set", "frozenset"})
WALKERS = frozenset({"enumerate", "iter", "list", "tuple"})


def sets_by_name(module: ast.Module) -> set[str]:
    """Names and attributes that an annotation or an assignment makes a set."""
    names = set()
    for node in ast.walk(module):
        if isinstance(node, ast.AnnAssign) and _says_set(node.annotation):
            names.add(_last(node.target))
        elif isinstance(node, ast.arg) and node.annotation and _says_set(node.annotation):
            names.add(node.arg)
        elif isinstance(node, ast.Assign) and is_set(node.value, frozenset()):
            names.update(_last(target) for target in node.targets)
    return names


def is_set(node: ast.expr, names: frozenset[str] | set[str]) -> bool:
    """Whether an expression is a set, as far as the file shows."""
    if isinstance(node, ast.BinOp):
        return is_set(node.left, names) or is_set(node.right, names)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in SET_MAKERS
    return isinstance(node, ast.Set | ast.SetComp) or _last(node) in names


def impurities(module: ast.Module) -> Iterator[str]:
    """What a file does that depends on more than its events."""
    names = sets_by_name(module)
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and _called(node) in IMPURE_CALLS:
            yield f"line {node.lineno}: {_called(node)}()"
        walked = _walked(node)
        if walked is not None and is_set(walked, names):
            yield f"line {walked.lineno}: walks over the set {ast.unparse(walked)}"


def _walked(node: ast.AST) -> ast.expr | None:
    """The expression whose elements ``node`` takes in order."""
    if isinstance(node, ast.For | ast.comprehension):
        return node.iter
    if isinstance(node, ast.Call):
        if _called(node) in WALKERS and node.args:
            return node.args[0]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "pop" and not node.args:
            return node.func.value
    return None


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _says_set(annotation: ast.expr) -> bool:
    return ast.unparse(annotation).split("[")[0] in ("set", "frozenset", "Set", "AbstractSet")


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("file", [file for file in files() if file.startswith(PURE)])
def test_the_scheduler_is_pure(file: str) -> None:
    assert list(impurities(tree(file))) == []


@pytest.mark.parametrize(
    "source",
    [
        "for x in {1, 2}: pass",
        "waiting = set()\nfor x in waiting: pass",
        "class A:\n    tasks: set[int]\n    def f(self):\n        return [t for t in self.tasks]",
        "def f(a: set[int], b: set[int]):\n    return list(a - b)",
        "ready: set[int] = set()\nready.pop()",
        "key = id(object())",
    ],
)
def test_the_check_finds(source: str) -> None:
    assert list(impurities(ast.parse(source)))


def test_the_check_lets_sorted_sets_pass() -> None:
    source = "waiting = set()\nfor x in sorted(waiting): pass\nif 1 in waiting: pass"
    assert list(impurities(ast.parse(source))) == []
