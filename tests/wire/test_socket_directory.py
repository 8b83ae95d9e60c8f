"""Sockets' directories: private, locked while in use, and removed when nobody is left."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

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


def test_one_whose_owner_was_killed_while_it_removed_it_goes(tmp_path: Path) -> None:
    (tmp_path / "mpgrad-cfwacxtu").mkdir()
    (tmp_path / "mpgrad-with_one").mkdir()
    (tmp_path / "mpgrad-with_one" / "file").touch()
    remove_stale()
    assert [path.name for path in tmp_path.iterdir()] == ["mpgrad-with_one"]


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
