"""Workers bound to processors: who gets which, and that the kernel knows of it."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

import mpgrad as mg
from mpgrad.base.topology import Core, bindings, cores, parse_cpus, share_of
from tests.leftovers import wait_until


@pytest.fixture
def system(tmp_path: Path) -> str:
    """Two nodes with two cores of two threads each."""
    for cpu in range(8):
        folder = tmp_path / "cpu" / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    for node, cpus in enumerate(("0-1,4-5", "2-3,6-7")):
        folder = tmp_path / "node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    return str(tmp_path)


def test_lists_of_processors() -> None:
    assert parse_cpus("0-2,8,10-11\n") == [0, 1, 2, 8, 10, 11]
    assert parse_cpus("\n") == []


def test_cores_have_threads_and_a_node(system: str) -> None:
    assert cores(range(8), system) == [
        Core((0, 4), 0), Core((1, 5), 0), Core((2, 6), 1), Core((3, 7), 1),
    ]  # fmt: skip
    assert cores([1, 6], system) == [Core((1,), 0), Core((6,), 1)]


def test_where_nothing_is_shown_each_processor_is_a_core(tmp_path: Path) -> None:
    assert cores([0, 3], str(tmp_path)) == [Core((0,), 0), Core((3,), 0)]


@pytest.mark.parametrize(
    ("pin", "workers", "expected"),
    [
        ("none", 4, []),
        ("cores", 2, [(0, 4), (2, 6)]),
        ("cores", 4, [(0, 4), (2, 6), (1, 5), (3, 7)]),
        ("cores", 5, [(0,), (2,), (1,), (3,), (4,)]),
        ("cores", 9, [(0,), (2,), (1,), (3,), (4,), (6,), (5,), (7,), (0,)]),
        ("nodes", 3, [(0, 1, 4, 5), (2, 3, 6, 7), (0, 1, 4, 5)]),
    ],
)
def test_who_is_bound_to_what(
    system: str, pin: str, workers: int, expected: list[tuple[int, ...]]
) -> None:
    assert bindings(pin, workers, range(8), system) == expected


def test_ranks_share_whole_cores(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert [share_of(k, 2, system) for k in range(2)] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert [share_of(k, 3, system) for k in range(3)] == [(0, 4), (1, 5), (2, 3, 6, 7)]
    assert [share_of(k, 5, system) for k in range(5)] == [(0, 4), (1, 5), (2, 6), (3, 7), (0, 4)]


def is_bound(pid: int, cpus: tuple[int, ...]) -> bool:
    """Whether all threads of a process may run on these processors, and on no other."""
    found = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            found.add(tuple(sorted(os.sched_getaffinity(int(thread)))))
    return found == {cpus}


@pytest.mark.process
@pytest.mark.parametrize("pin", ["cores", "nodes"])
def test_each_worker_and_its_successor_are_bound(pin: str) -> None:
    expected = bindings(pin, 2)
    with mg.Engine(mode="process", cpu_workers=2, gpus="none", pin=pin) as engine:
        first = engine.worker_pids()
        for pid, cpus in zip(first, expected, strict=True):
            assert is_bound(pid, cpus)

        os.kill(first[1], signal.SIGKILL)

        def has_bound_successor() -> bool:
            pids = engine.worker_pids()
            return len(pids) == 2 and pids[1] != first[1] and is_bound(pids[1], expected[1])

        assert wait_until(has_bound_successor)


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Engine\(pin='core'\): it must be one of none, cores"):
        mg.Engine(pin="core")
