"""What is said of a worker that has ended, and whether memory had to do with it."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from mpgrad.base import machine
from mpgrad.coordinator.reaper import Reaper


def ended(sent: signal.Signals | None = None) -> subprocess.Popen[bytes]:
    """A process that was killed by a signal, or left with status 7; nobody has waited for it."""
    process = subprocess.Popen(["sh", "-c", "exit 7" if sent is None else "exec sleep 1000"])
    if sent is not None:
        process.send_signal(sent)
    return process


def test_a_process_that_leaves() -> None:
    end = Reaper().reap(ended())
    assert (end.status, end.words, end.is_killed) == (7, "exited with status 7", False)


def test_a_crash_says_nothing_of_memory() -> None:
    end = Reaper().reap(ended(signal.SIGSEGV))
    assert (end.words, end.is_killed) == ("was killed by SIGSEGV", False)


def test_a_kill_by_somebody_says_how_much_memory_there_was() -> None:
    end = Reaper().reap(ended(signal.SIGKILL))
    total = f"{machine.memory_total() / 2**20:,.0f} MiB"
    assert end.is_killed
    assert end.words.startswith("was killed by SIGKILL (it had held up to ")
    assert end.words.endswith(f" MiB of {total})")


def test_a_process_that_somebody_else_waited_for() -> None:
    process = ended(signal.SIGKILL)
    process.wait()
    end = Reaper().reap(process)
    assert (end.status, end.words) == (-signal.SIGKILL, "was killed by SIGKILL")


def test_each_kill_of_the_kernel_accounts_for_one_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counter is imitated; ``scripts/stress oom`` has the kernel kill."""
    kills = [5]
    monkeypatch.setattr(machine, "oom_kills", lambda: kills[0])
    reaper = Reaper()
    kills[0] += 2
    words = [reaper.reap(ended(signal.SIGKILL)).words for _ in range(3)]
    assert ["because memory ran out" in text for text in words] == [True, True, False]


FILES = {
    "cgroup v2": ("memory.events", "low 0\noom 3\noom_kill 4\n", 4),
    "cgroup v1": ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 5),
    "nowhere": ("nothing", "", 6),
}


@pytest.mark.parametrize("where", FILES)
def test_where_the_kernel_counts_its_kills(tmp_path: Path, where: str) -> None:
    name, text, expected = FILES[where]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    (tmp_path / "membership").write_text("4:memory:/\n0::/\n")
    (tmp_path / "vmstat").write_text("pgfault 9\noom_kill 6\n")
    paths = (tmp_path, tmp_path / "membership", tmp_path / "vmstat")
    assert machine.oom_kills(*paths) == expected


def test_a_kernel_that_does_not_count(tmp_path: Path) -> None:
    assert machine.oom_kills(tmp_path, tmp_path / "none", tmp_path / "none") == 0
