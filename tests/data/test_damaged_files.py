"""Files that cannot be written or read: the error names them, and nothing is half-written."""

from __future__ import annotations

import pickle
import subprocess
import sys
import zipfile
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


def test_a_file_of_pytorch_is_named_with_the_way_to_read_it(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("weights/data.pkl", b"\x80\x02}q\x00.")
    with pytest.raises(pickle.UnpicklingError, match=r"weights\.pt' cannot.* safetensors"):
        mg.load(path)


def test_a_place_that_is_not_here_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.mg"
    mg.save(_state(), path)
    with pytest.raises(RuntimeError, match="map_location asks for 'nowhere', which is not here"):
        mg.load(path, map_location="nowhere")


def test_other_states_are_refused() -> None:
    model = mg.nn.Linear(1, 1)
    with pytest.raises(TypeError, match=r"dict-like, got <class 'str'>. Load the file first"):
        model.load_state_dict("weights.pt")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="dict-like, got <class 'list'>"):
        model.load_state_dict([1])  # type: ignore[arg-type]
    optimizer = mg.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(KeyError, match=r"'param_groups', but this one has .*weight"):
        optimizer.load_state_dict(model.state_dict())
