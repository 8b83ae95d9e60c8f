"""Files that cannot be written or read: the error names them, and nothing is half-written."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpgrad as mg


def _state() -> dict[str, Any]:
    return {"weight": mg.arange(300, dtype=mg.float32), "epoch": 3}


def test_a_file_that_is_cut_off_anywhere_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.mg"
    mg.save(_state(), path)
    whole = path.read_bytes()
    for length in (0, 1, 10, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(pickle.UnpicklingError, match=r"state\.mg' cannot be loaded: it is"):
            mg.load(path)


def test_a_damaged_file_is_named_or_loads(tmp_path: Path) -> None:
    path = tmp_path / "state.mg"
    mg.save(_state(), path)
    whole = bytearray(path.read_bytes())
    draws = np.random.default_rng(0)
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[draws.integers(len(whole))] ^= 1 << draws.integers(8)
        path.write_bytes(damaged)
        said = _said_by_loading(path)
        assert not said or "state.mg' cannot be loaded" in said or "was saved from" in said


def _said_by_loading(path: Path) -> str:
    """The error; empty where only numbers have changed: pickles have no checksum."""
    try:
        mg.load(path)
    except (pickle.UnpicklingError, RuntimeError) as error:
        return str(error)
    return ""


def test_other_bytes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a checkpoint\n")
    with pytest.raises(pickle.UnpicklingError, match=r"notes\.txt' cannot be loaded: it is damag"):
        mg.load(path)


def test_what_cannot_be_pickled_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state.mg"
    mg.save(_state(), path)
    before = path.read_bytes()
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        mg.save({"weight": mg.ones(1000), "hook": lambda: None}, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


_LIMITED = """
import resource, sys
import mpgrad as mg
path = sys.argv[1]
mg.save(mg.ones(10), path)
large = mg.ones(100_000)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    mg.save(large, path)
except OSError as error:
    print(error)
print(mg.load(path).sum().item())
"""


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state.mg"
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(path)], capture_output=True, text=True, check=True
    )
    said, total = done.stdout.splitlines()
    assert str(path) in said
    assert total == "10.0"
    assert list(tmp_path.iterdir()) == [path]


def test_a_device_is_written_to_directly() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        mg.save(mg.ones(100_000), "/dev/full")
    mg.save(mg.ones(3), "/dev/null")


def test_links_and_modes_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "state.mg", tmp_path / "latest.mg"
    mg.save(mg.ones(1), path)
    path.chmod(0o640)
    link.symlink_to(path)
    mg.save(mg.ones(2), link)
    assert link.is_symlink()
    assert mg.load(path).shape == (2,)
    assert path.stat().st_mode & 0o777 == 0o640
