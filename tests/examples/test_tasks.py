"""Each program of docs/guides/tasks.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mpgrad as mg

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "tasks.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
#: What a program may need beside mpgrad.
OTHERS = ("pandas", "matplotlib", "tqdm")


def test_all_of_them_are_tried() -> None:
    assert len(PROGRAMS) == PAGE.read_text().count("```") / 2


@pytest.mark.process
@pytest.mark.parametrize("code", PROGRAMS)
def test_a_program(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in OTHERS:
        if f"import {name}" in code or f"from {name}" in code:
            pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    before = mg.current_engine()
    exec(compile(code, "<page>", "exec"), {"__name__": "__main__"})
    assert mg.current_engine() is before
    # What a comment says that is printed.
    said = re.search(r"print\(error\)  # (.*)", code)
    assert ("print(error)" in code) == bool(said)
    if said is not None:
        out = capsys.readouterr().out
        for part in re.split(r"\.\.\.|w0\.1 \(pid 9030\)|\(\.\.\., in step\)", said[1]):
            assert part.strip() in out
