"""Settings: what is read, what is refused and how, and that the document tells the same."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from source_tree import PACKAGE, ROOT

from mpgrad.base import config, machine


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in config.SETTINGS:
        monkeypatch.delenv(setting.name, raising=False)


def test_defaults() -> None:
    assert config.engine_mode() == "auto"
    assert config.cpu_workers() is None
    assert config.gpus() == "auto"
    assert config.shm_limit() is None
    assert config.debug() == 0
    assert config.test_hook() == ""


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (config.ENGINE, "Process", "process"),
        (config.CPU_WORKERS, " 3 ", 3),
        (config.CPU_WORKERS, "", None),
        (config.GPUS, "none", "none"),
        (config.GPUS, "0, 2", (0, 2)),
        (config.SHM_LIMIT, "4096", 4096),
        (config.SHM_LIMIT, "4G", 4 * 2**30),
        (config.SHM_LIMIT, "1.5 MiB", 3 * 2**19),
        (config.DEBUG, "2", 2),
        (config.TRACEBACK, "Full", "full"),
        (config.TEST_HOOK, "tests.hooks:hook", "tests.hooks:hook"),
        (config.CUDA_DRIVER, "CuPy", "mpgrad.arrays.cuda.cuda_cupy:CupyDriver"),
        (config.CUDA_DRIVER, "drivers.of_mine:Mine", "drivers.of_mine:Mine"),
    ],
)
def test_values(
    monkeypatch: pytest.MonkeyPatch, setting: config.Setting, text: str, value: object
) -> None:
    monkeypatch.setenv(setting.name, text)
    assert setting.get() == value


@pytest.mark.parametrize(
    ("setting", "text", "allowed"),
    [
        (config.ENGINE, "processes", "auto, local, process"),
        (config.CPU_WORKERS, "0", "at least 1"),
        (config.CPU_WORKERS, "two", "at least 1"),
        (config.GPUS, "1,", "device numbers"),
        (config.GPUS, "1,1", "twice"),
        (config.SHM_LIMIT, "4 apples", "K, M, G or T"),
        (config.SHM_LIMIT, "0", "more than 0"),
        (config.DEBUG, "yes", "0, 1 or 2"),
        (config.CUDA_DRIVER, "a driver", "module:function"),
        (config.TEST_HOOK, "tests.hooks", "module:function"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, setting: config.Setting, text: str, allowed: str
) -> None:
    monkeypatch.setenv(setting.name, text)
    with pytest.raises(ValueError, match=re.escape(allowed)) as caught:
        setting.get()
    assert str(caught.value).startswith(f"{setting.name}={text!r}: ")


def test_no_other_file_reads_our_variables() -> None:
    # Setting one for a child is no reading: `os.environ["MPGRAD_..."] = ...`.
    read = re.compile(r"""(getenv\(|environ\s*(\.get\(|\[))\s*["']MPGRAD_\w+["'](?!\]\s*=[^=])""")
    readers = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if read.search(path.read_text())
    ]
    assert readers == []


def test_the_document_is_up_to_date() -> None:
    # Otherwise: python -m mpgrad.base.config > docs/settings.md
    assert (ROOT / "docs" / "settings.md").read_text() == config.settings_table()


# ------------------------------------------------------------------------------------ machine


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_the_smallest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    write(tmp_path / "membership", "0::/outer/inner")
    write(tmp_path / "outer/inner/cpu.max", "max 100000")
    write(tmp_path / "outer/cpu.max", "150000 100000")
    write(tmp_path / "outer/inner/memory.max", "4096")
    write(tmp_path / "outer/memory.max", "max")
    assert machine.cpu_quota(tmp_path, tmp_path / "membership") == 1.5
    assert machine.memory_limit(tmp_path, tmp_path / "membership") == 4096


def test_cgroup_v1(tmp_path: Path) -> None:
    # In a container the path of the group is the host's: only the root of the mount is there.
    write(tmp_path / "membership", "4:memory:/docker/1\n1:cpu,cpuacct:/docker/1\n0::/")
    write(tmp_path / "cpu/cpu.cfs_quota_us", "300000")
    write(tmp_path / "cpu/cpu.cfs_period_us", "100000")
    write(tmp_path / "memory/memory.limit_in_bytes", "9223372036854771712")
    assert machine.cpu_quota(tmp_path, tmp_path / "membership") == 3.0
    assert machine.memory_limit(tmp_path, tmp_path / "membership") is None


def test_no_cgroup_at_all(tmp_path: Path) -> None:
    assert machine.cpu_quota(tmp_path, tmp_path / "absent") is None


@pytest.mark.parametrize(("quota", "expected"), [(None, 4), (2.9, 2), (0.3, 1), (64.0, 4)])
def test_default_workers(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    assert machine.available_cpus() == expected
