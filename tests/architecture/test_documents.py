"""The documents name only files that exist, and their figures of the rows are the rows'."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
#: Where a path that stands in a text begins.
BEGINNINGS = (ROOT, ROOT / "mpgrad", ROOT / "mpgrad" / "autograd")

PATH = re.compile(r"`([\w./-]+/[\w.-]+\.(?:py|md|toml|json))`")
LINK = re.compile(r"\]\((?!http)([^)#]+)")
#: The reference, which is made when the site is built.
GENERATED = "api/"
ROWS = re.compile(r"(\d+) rows: (\d+) shown by tests, (\d+) not here")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_exist(document: Path) -> None:
    text = document.read_text()
    paths = [p for p in PATH.findall(text) if not any((at / p).exists() for at in BEGINNINGS)]
    links = [link for link in LINK.findall(text) if not link.startswith(GENERATED)]
    links = [link for link in links if not (document.parent / link).exists()]
    assert paths + links == []


ANCHOR = re.compile(r"\]\((?!http)([^)#\s]*)#([^)\s]+)\)")
CODE_BLOCK = re.compile(r"```.*?```", re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    """What stands behind ``#`` in links to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", CODE_BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_headings_that_links_name_exist(document: Path) -> None:
    links = ANCHOR.findall(CODE_BLOCK.sub("", document.read_text()))
    pages = [(document.parent / page if page else document, anchor) for page, anchor in links]
    assert [(page, anchor) for page, anchor in pages if anchor not in anchors_of(page)] == []


#: A line in a list of pages of the site.
LISTED = re.compile(r"```\{toctree\}\n(.*?)```", re.DOTALL)
INCLUDED = re.compile(r"```\{(?:include|literalinclude)\} (\S+)")


def test_every_page_is_in_the_site_and_what_it_includes_exists() -> None:
    pages = set((ROOT / "docs").glob("**/*.md"))
    listed, included = {ROOT / "docs" / "index.md"}, set()
    for page in pages:
        text = page.read_text()
        for names in LISTED.findall(text):
            for name in names.split("\n"):
                if name and not name.startswith(":"):
                    listed.add((page.parent / f"{name}.md").resolve())
        included |= {(page.parent / name).resolve() for name in INCLUDED.findall(text)}
    listed.discard(ROOT / "docs" / "api" / "index.md")  # written when the site is built
    assert listed == pages
    assert [path for path in included if not path.exists()] == []


def test_every_example_is_in_the_gallery() -> None:
    shown = (ROOT / "docs" / "gallery.md").read_text()
    missing = [
        path.name
        for path in (ROOT / "examples").glob("*.py")
        if f"outputs/{path.stem}.txt" not in shown
    ]
    assert missing == []


def test_the_readme_counts_the_rows_as_the_table_does() -> None:
    found = ROWS.search((ROOT / "docs" / "evidence" / "semantics.md").read_text())
    assert found is not None
    assert f" {found[1]} behaviours, " in (ROOT / "README.md").read_text()


def test_the_readme_is_read_in_one_go() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90


#: Pages that people read from top to bottom; tables, code and what a program writes are no prose.
PROSE = [
    ROOT / "README.md",
    *(
        page
        for folder in ("docs", "docs/guides", "docs/tutorials", "docs/many_hosts")
        for page in (ROOT / folder).glob("*.md")
        if page.name != "benchmarks.md"
    ),
]
WORDS_MAX, PAGE_MAX = 30, 20_000
BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )")


def sentences_of(page: Path) -> list[str]:
    text = CODE_BLOCK.sub("\n\n", page.read_text())
    text = re.sub(r"^(?:#|\s*\|).*$", "\n", text, flags=re.MULTILINE)
    found = []
    for block in BLOCK.split(text):
        if not block.startswith("    "):
            flat = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(block.split()))
            flat = re.sub(r"`[^`]*`", "`code`", flat)
            found += re.split(r"(?<=[.!?])[\"')*]*\s+", flat)
    return found


@pytest.mark.parametrize("page", PROSE, ids=lambda path: path.name)
def test_a_page_can_be_read_aloud(page: Path) -> None:
    sentences = sentences_of(page)
    assert [text for text in sentences if len(text.split()) > WORDS_MAX] == []
    has_no_noun = re.compile(r"(?:Who|What|Whoever|Whatever) [^?]*$")
    assert [text for text in sentences if has_no_noun.match(text)] == []
    assert len(page.read_bytes()) <= PAGE_MAX


#: The terms of PyTorch's engine that a reader looks up in ARCHITECTURE.md.
TERMS = {
    *("Node", "Edge", "AccumulateGrad", "SavedVariable", "GraphTask", "NodeTask", "ReadyQueue"),
    *("InputBuffer", "dependencies_", "not_ready_", "outstanding_tasks_", "exec_info_"),
    *("captured_vars_", "compute_dependencies", "thread_main", "evaluate_function"),
    *("validate_outputs", "reentrant_depth_", "set_default_engine_stub"),
}
CODE = re.compile(r"`([^`]+)`")


def term_rows() -> list[tuple[str, str, str]]:
    """The rows of the table of terms: PyTorch's terms, the names here, their files."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    lines = text.partition("## PyTorch's engine, term by term")[2].strip().splitlines()
    table = [line.strip("|").split("|") for line in lines[2 : lines.index("")]]
    return [(theirs, ours, files) for theirs, ours, files in table]


def test_each_term_of_pytorchs_engine_has_a_row() -> None:
    terms = {term for theirs, _, _ in term_rows() for term in CODE.findall(theirs)}
    assert TERMS - terms == set()


@pytest.mark.parametrize("row", term_rows(), ids=lambda row: row[0].strip())
def test_the_names_of_a_term_are_in_their_files(row: tuple[str, str, str]) -> None:
    _, ours, files = row
    sources = [(ROOT / "mpgrad" / file).read_text() for file in CODE.findall(files)]
    names = [part for name in CODE.findall(ours) for part in name.split(".") if part != "local"]
    missing = [
        name
        for name in names
        if not any(
            re.search(rf"^\s*(class |def )?{name}\b *[(:\[=]", source, re.MULTILINE)
            for source in sources
        )
    ]
    assert names
    assert missing == []


def test_a_decision_is_at_most_three_lines() -> None:
    pages = [*(ROOT / "docs" / "decisions").glob("*.md")]
    decisions = [
        found[0]
        for page in pages
        for found in re.finditer(r"^\* .*\n(?:  .*\n)*", page.read_text(), re.MULTILINE)
    ]
    assert len(decisions) > 100
    assert [text for text in decisions if text.count("\n") > 3] == []
    assert [text for text in decisions if max(map(len, text.splitlines())) > 120] == []
