"""Gets PyTorch's ``test_autograd.py`` from Debian's source package, into a folder git ignores.

Where a package server is, this machine's apt knows; its lists and caches stay as they are. Nothing
is built or installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

#: The release of Debian whose PyTorch the methods were chosen from: PyTorch 2.6.
RELEASE = "trixie"
FOLDER = Path(__file__).resolve().parents[1] / ".conformance"

#: The address of Debian's main archive, in either form of apt's sources.
_ADDRESS = re.compile(
    r"^(?:deb\s+(?:\[[^\]]*\]\s+)?|URIs:\s*)(\S+/debian(?:/[0-9TZ]+)?/?)(?:\s|$)", re.M
)
_OPTIONS = re.compile(r"^deb\s+\[([^\]]*)\]", re.M)
_SIGNED = re.compile(r"^Signed-By:\s*(\S+)", re.M)


def autograd_tests(folder: Path = FOLDER) -> Path:
    """PyTorch's test file in ``folder``; it is fetched where it is missing (about 40 MB).

    Raises:
        RuntimeError: it cannot be fetched.
    """
    path = folder / "test_autograd.py"
    if not path.exists():
        _fetch(folder)
    return path


def _fetch(folder: Path) -> None:
    if shutil.which("apt-get") is None:
        raise RuntimeError(
            f"there is no apt-get here, which would get PyTorch's sources. Put test_autograd.py of "
            f"PyTorch 2.6 (its folder test/) into {folder}."
        )
    with tempfile.TemporaryDirectory(prefix="conformance-") as scratch:
        archive = _source_archive(Path(scratch))
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as files:
            for member in files:
                name = member.name.partition("/")[2]
                if name.startswith("test/expect/TestAutograd."):
                    _write(folder / "expect" / Path(name).name, files, member)
                elif name == "test/test_autograd.py":
                    _write(folder / "test_autograd.py", files, member)


def _write(path: Path, files: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    content = files.extractfile(member)
    assert content is not None
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.read())


def _source_archive(scratch: Path) -> Path:
    """Download the source package ``pytorch`` into ``scratch``."""
    for name in ("parts", "lists/partial", "cache/archives/partial"):
        (scratch / name).mkdir(parents=True)
    (scratch / "parts" / "source.list").write_text(_source_entry())
    apt = ["apt-get", "-q", "-o", "Dir::Etc::sourcelist=/dev/null", "-o", "Acquire::Languages=none"]
    for option, place in (
        ("Dir::Etc::sourceparts", "parts"),
        ("Dir::State::lists", "lists"),
        ("Dir::Cache", "cache"),
    ):
        apt += ["-o", f"{option}={scratch / place}"]
    apt += ["-o", "APT::Sandbox::User=root"]
    for command in (["update"], ["source", "--download-only", "--tar-only", "pytorch"]):
        done = subprocess.run([*apt, *command], cwd=scratch, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"apt-get {command[0]} failed:\n{done.stderr or done.stdout}")
    found = list(scratch.glob("pytorch_*.orig.tar.*"))
    if not found:
        raise RuntimeError(f"Debian {RELEASE} has no source package pytorch")
    return found[0]


def _source_entry() -> str:
    """The line for apt that names the source packages of the archive that this machine uses.

    Raises:
        RuntimeError: apt's sources name no archive of Debian's.
    """
    files = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    for file in files:
        text = file.read_text() if file.is_file() else ""
        address = _ADDRESS.search(text)
        if address is None:
            continue
        options = _OPTIONS.search(text)
        signed = _SIGNED.search(text)
        given = options[1] if options else f"signed-by={signed[1]}" if signed else ""
        return f"deb-src {f'[{given}] ' if given else ''}{address[1]} {RELEASE} main\n"
    raise RuntimeError(
        "apt's sources name no archive of Debian's: put test_autograd.py of PyTorch 2.6 (its "
        f"folder test/) into {FOLDER}"
    )
