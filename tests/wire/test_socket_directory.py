"""Sockets' directories: private, locked while in use, and removed when nobody is left."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mpgrad.wire.socket_directory import SocketDirectory, remove_stale


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_nobody_else_may_look() -> None:
    directory = SocketDirectory()
    assert stat.S_IMODE(os.stat(directory.path).st_mode) == 0o700
    directory.remove()
    assert not os.path.exists(directory.path)


def test_one_in_use_stays() -> None:
    first, second = SocketDirectory(), SocketDirectory()
    remove_stale()
    assert os.path.exists(first.path)
    assert os.path.exists(second.path)
    first.remove()
    second.remove()


def test_one_whose_owner_was_killed_goes(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, SocketDirectory().path.encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    path = os.read(reader, 4096).decode()
    os.close(reader)
    os.close(writer)
    assert os.path.exists(path)
    remove_stale()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_one_stays(tmp_path: Path) -> None:
    """A user's own, as ``tempfile.mkdtemp(prefix="mpgrad-")`` makes it."""
    (tmp_path / "mpgrad-cfwacxtu").mkdir(0o700)
    remove_stale()
    assert [path.name for path in tmp_path.iterdir()] == ["mpgrad-cfwacxtu"]


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    (tmp_path / "mpgrad-without-a-lock").mkdir()
    (tmp_path / "mpgrad-file").touch()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "lock").touch()
    (tmp_path / "mpgrad-link").symlink_to(outside)
    remove_stale()
    assert len(list(tmp_path.iterdir())) == 4
    assert outside.exists()


def left_behind() -> Path:
    """A directory whose engine was killed whole."""
    directory = SocketDirectory()
    directory._unlock()
    return Path(directory.path)


def test_one_with_the_sockets_of_a_killed_engine_goes(tmp_path: Path) -> None:
    path = left_behind()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path / "control"))
        remove_stale()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.rename(path.with_name("mpgrad-of_a_user")),
        lambda path: path.chmod(0o755),
        lambda path: (path / "lock").write_bytes(b""),
        lambda path: (path / "lock").write_bytes((path / "lock").read_bytes() + b"more"),
        lambda path: (path / "lock").chmod(0o644),
        lambda path: (path / "results.txt").write_text("of a year"),
        lambda path: (path / "folder").mkdir(),
        lambda path: (path / "lock").unlink(),
        lambda path: (
            (path / "lock").rename(path.parent / "token")
            and (path / "lock").symlink_to(path.parent / "token")
        ),
    ],
    ids=[
        "name",
        "mode",
        "no token",
        "another token",
        "mode of the token",
        "a file",
        "a directory",
        "no lock",
        "a link",
    ],
)
def test_one_that_lacks_a_proof_stays_with_all_that_is_in_it(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    path = left_behind()
    change(path)
    before = sorted(tmp_path.rglob("*"))
    remove_stale()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("moment", ["os.open", "fcntl.flock", "os.write", "os.rename"])
def test_one_whose_owner_was_killed_while_it_made_it_goes(tmp_path: Path, moment: str) -> None:
    die_at(moment, lambda: SocketDirectory())
    assert list(tmp_path.iterdir()) != []
    remove_stale()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("moment", ["os.rename", "os.unlink", "os.rmdir"])
def test_one_whose_owner_was_killed_while_it_removed_it_goes(tmp_path: Path, moment: str) -> None:
    directory = SocketDirectory()
    die_at(moment, directory.remove)
    assert list(tmp_path.iterdir()) != []
    directory._unlock()
    remove_stale()
    assert list(tmp_path.iterdir()) == []


def die_at(moment: str, act: Callable[[], object]) -> None:
    """``act`` in a child that ends where it would call ``moment``."""
    child = os.fork()
    if child == 0:
        try:
            with mock.patch(moment, side_effect=lambda *_, **__: os._exit(0)):
                act()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("moment", ["os.open", "fcntl.flock"])
def test_one_that_another_engine_takes_for_stale_is_made_anew(moment: str) -> None:
    real = {"os.open": os.open, "fcntl.flock": fcntl.flock}[moment]
    seen = []

    def interfere(*args: Any, **options: Any) -> Any:
        if not seen:
            seen.append(True)
            remove_stale()
        return real(*args, **options)

    with mock.patch(moment, interfere):
        directory = SocketDirectory()
    assert seen
    remove_stale()
    assert os.path.exists(os.path.join(directory.path, "lock"))
    directory.remove()


def test_a_file_that_somebody_put_there_stays(tmp_path: Path) -> None:
    directory = SocketDirectory()
    Path(directory.path, "of-a-user").touch()
    directory.remove()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["of-a-user"]
