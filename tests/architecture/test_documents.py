"""The documents name only files that exist, and their figures of the rows are the rows'."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
#: Where a path that stands in a text begins.
BEGINNINGS = (ROOT, ROOT / "mpgrad", ROOT / "mpgrad" / "autograd")

PATH = re.compile(r"`([\w./-]+/[\w.-]+\.(?:py|md|toml|json))`")
LINK = re.compile(r"\]\((?!http)([^)#]+)")
ROWS = re.compile(r"(\d+) rows: (\d+) shown by tests, (\d+) not here")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_exist(document: Path) -> None:
    text = document.read_text()
    paths = [p for p in PATH.findall(text) if not any((at / p).exists() for at in BEGINNINGS)]
    links = [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    assert paths + links == []


def test_the_readme_counts_the_rows_as_the_table_does() -> None:
    found = ROWS.search((ROOT / "docs" / "semantics.md").read_text())
    assert found is not None
    rows, shown, absent = found.groups()
    said = " ".join((ROOT / "README.md").read_text().split())
    assert f"lists {rows} behaviours of PyTorch's engine: {shown} with the tests" in said
    assert f"{absent} that are not here" in said
