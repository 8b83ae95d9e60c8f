"""The modules that docstrings, comments and the settings of the tools name are there."""

from __future__ import annotations

import io
import re
import tokenize
import tomllib

import mpgrad
from tests.architecture.source_tree import PACKAGE, ROOT, files

#: ``engine.placement``, ``mpgrad.engine.placement.place()``.
DOTTED = re.compile(r"``(?:mpgrad\.)?([a-z_]\w*(?:\.\w+)+)(?:\(\))?``|``mpgrad\.(\w+)``")
#: A name that begins with ``torch`` is one of PyTorch.
FOLDERS = {path.name for path in PACKAGE.iterdir() if path.is_dir()} - {"torch"}


#: In the docstring of a folder, the part of it that comes first for a reader.
BEGIN = re.compile(r"Begin\s+with\s+``([\w.]+)``")


def words_of(file: str) -> str:
    """The docstrings and comments of ``file``."""
    tokens = tokenize.generate_tokens(io.StringIO((PACKAGE / file).read_text()).readline)
    return "\n".join(
        token.string
        for token in tokens
        if token.type == tokenize.COMMENT or token.string.lstrip("rbf").startswith('"""')
    )


def is_there(name: str) -> bool:
    """Whether ``name`` leads to a module, and to a word in its source if it goes on."""
    folder, parts = PACKAGE, name.split(".")
    while parts and (folder / parts[0]).is_dir():
        folder /= parts.pop(0)
    if not parts:
        return True
    file = folder / f"{parts[0]}.py"
    if file.exists():
        parts.pop(0)
    else:
        file = folder / "__init__.py"
    return not parts or re.search(rf"\b{parts[0]}\b", file.read_text()) is not None


def test_modules_that_words_name_are_there() -> None:
    missing = [
        f"{file}: {name or public}"
        for file in files()
        for name, public in DOTTED.findall(words_of(file))
        if (name.split(".")[0] in FOLDERS and not is_there(name))
        or (public and not is_there(public) and not hasattr(mpgrad, public))
    ]
    assert missing == []


def test_parts_of_folders_with_which_to_begin_are_there() -> None:
    folders = [file for file in files() if file.endswith("__init__.py")]
    begins = [(PACKAGE / file, name) for file in folders for name in BEGIN.findall(words_of(file))]
    assert len(begins) > 50
    for file, name in begins:
        part = file.parent.joinpath(*name.split("."))
        assert part.is_dir() or part.with_suffix(".py").exists(), f"{file}: {name}"


def test_modules_that_the_type_checker_is_strict_with_are_there() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    names = [name.removesuffix(".*") for one in settings for name in one["module"]]
    ours = [ROOT / name.replace(".", "/") for name in names if name.startswith("mpgrad.")]
    assert ours
    assert [path for path in ours if not (path.is_dir() or path.with_suffix(".py").exists())] == []
