"""Gets the repositories of the manifest, into a folder that git ignores."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".programs"
#: Small modules in place of packages that PyTorch programs import beside it.
SUBSTITUTES = Path(__file__).with_name("substitutes")
MANIFEST = Path(__file__).with_name("manifest.toml")


class Repository(NamedTuple):
    """A public repository, in the state of one commit."""

    source: str
    commit: str
    licence: str
    programs: tuple[str, ...]

    @property
    def address(self) -> str:
        """Where it is fetched from."""
        return f"https://github.com/{self.source}"


def manifest() -> list[Repository]:
    """All that the manifest names."""
    entries = tomllib.loads(MANIFEST.read_text())["repository"]
    return [Repository(**{**entry, "programs": tuple(entry["programs"])}) for entry in entries]


def fetched(repository: Repository, copies: Path | None = None) -> Path:
    """The folder with the files of ``repository``; they are fetched where they are missing.

    Args:
        repository: which one.
        copies: a folder of clones, each as ``owner+name``, to use instead.

    Raises:
        RuntimeError: it cannot be fetched; the text is git's.
    """
    folder = (copies or FOLDER) / repository.source.replace("/", "+")
    if not (folder / ".git").exists() and copies is None:
        folder.mkdir(parents=True, exist_ok=True)
        _git(folder, "init", "--quiet")
    here = _git(folder, "rev-parse", "--quiet", "--verify", "HEAD", check=False)
    if here != repository.commit and copies is not None:
        raise RuntimeError(f"{folder} is not at commit {repository.commit}")
    if here != repository.commit:
        _git(folder, "fetch", "--quiet", "--depth", "1", repository.address, repository.commit)
        _git(folder, "checkout", "--quiet", "--force", repository.commit)
    return folder


def _git(folder: Path, *arguments: str, check: bool = True) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
    )
    if check and done.returncode:
        raise RuntimeError(f"git {arguments[0]} in {folder} failed:\n{done.stderr}")
    return done.stdout.strip()
