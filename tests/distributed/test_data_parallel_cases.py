"""Join, hooks, buckets, static graphs, objects, groups: the cases of scripts, in three ranks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.distributed.ranks import Ran, run_ranks

SCRIPTS = ("data_parallel_cases.py", "object_cases.py", "group_cases.py")


def source(script: str) -> str:
    return Path(__file__).with_name(script).read_text()


def cases() -> list[tuple[str, str]]:
    return [
        (script, node.name)
        for script in SCRIPTS
        for node in ast.parse(source(script)).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return {s: run_ranks(tmp_path_factory.mktemp("cases"), source(s), 3) for s in SCRIPTS}


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(("script", "name"), cases())
def test_case(ran: dict[str, Ran], script: str, name: str) -> None:
    assert ran[script].code == 0, ran[script].errors
    said = [
        line for rank in range(3) for line in ran[script].lines[rank] if line.split()[0] == name
    ]
    assert said == [f"{name} passed"] * 3
