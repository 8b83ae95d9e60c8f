"""Files and functions stay readable in one sitting; every module says what it is for."""

from __future__ import annotations

import ast

from source_tree import PACKAGE, files, tree

FILE_LINES_MAX = 450
FUNCTION_LINES_MAX = 70


def test_files_are_short() -> None:
    lengths = {file: len((PACKAGE / file).read_text().splitlines()) for file in files()}
    assert {file: n for file, n in lengths.items() if n > FILE_LINES_MAX} == {}


def test_functions_are_short() -> None:
    long = [
        f"{file}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for file in files()
        for node in ast.walk(tree(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert long == []


def test_modules_say_what_they_are_for() -> None:
    assert [file for file in files() if not ast.get_docstring(tree(file))] == []
