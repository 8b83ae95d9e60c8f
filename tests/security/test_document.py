"""``docs/security.md`` names tests and files; each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__)
ROOT = HERE.parents[2]
TEXT = (ROOT / "docs/security.md").read_text()

#: Tests of this directory that show no defence: of the document, and that a friend is heard.
NO_DEFENCE = {"test_who_knows_the_token_is_heard"}


def names_in(*paths: Path) -> set[str]:
    """The tests that are defined in some files."""
    pattern = re.compile(r"^def (test_\w+)", re.MULTILINE)
    return {name for path in paths for name in pattern.findall(path.read_text())}


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    assert len(named) > 30
    assert named - names_in(*(ROOT / "tests").rglob("test_*.py")) == set()


def test_every_test_of_security_is_named() -> None:
    ours = names_in(*HERE.parent.glob("test_*.py")) - names_in(HERE) - NO_DEFENCE
    assert {name for name in ours if f"`{name}`" not in TEXT} == set()


def test_every_file_that_is_named_exists() -> None:
    named = re.findall(r"`((?:wire|shm|workers|coordinator|engine)/\w*(?:\.py)?)`", TEXT)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "mpgrad" / name).exists()] == []
