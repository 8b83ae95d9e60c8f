"""``mg.multiprocessing.spawn``: calls, failures and ends, as in ``torch.multiprocessing``."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

import mpgrad as mg
import mpgrad.distributed as dist
import mpgrad.multiprocessing as mp
from mpgrad.distributed.launch.group_setup import reserved_port
from tests.distributed.ranks import HANGS_S
from tests.leftovers import Leftovers, left_since, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def _the_process_of_multiprocessing_is_there() -> None:
    """It stays once it was needed."""
    resource_tracker.ensure_running()


METHODS = pytest.mark.parametrize("method", ["spawn", "fork"])


def tell(number: int, queue: Any, word: str) -> None:
    queue.put((number, word))


def fail_if(number: int, which: int) -> None:
    if number == which:
        raise ValueError(f"process {number} wants to")
    signal.pause()


def exit_with(number: int, code: int) -> None:
    if number == 0:
        sys.exit(code)
    signal.pause()


def end_by(number: int, which: int) -> None:
    if number == 0:
        os.kill(os.getpid(), which)
    signal.pause()


def fail_after_the_first(number: int, folder: str) -> None:
    """Process 0 fails last, once it is told that the other's exception is there."""
    if number == 1:
        raise ValueError("the cause")
    wait_until(Path(folder, "it is there").exists)
    raise RuntimeError("what followed")


@METHODS
def test_each_process_gets_its_number(method: str) -> None:
    before = Leftovers.now()
    queue = mp.get_context(method).SimpleQueue()
    assert mp.start_processes(tell, (queue, "here"), nprocs=3, start_method=method) is None
    assert sorted(queue.get() for _ in range(3)) == [(0, "here"), (1, "here"), (2, "here")]
    queue.close()
    del queue
    assert not left_since(before)


@METHODS
@pytest.mark.parametrize("which", [0, 1])
def test_an_exception_is_raised_and_the_others_end(method: str, which: int) -> None:
    before = Leftovers.now()
    with pytest.raises(mp.ProcessRaisedException) as caught:
        mp.start_processes(fail_if, (which,), nprocs=2, start_method=method)
    error = caught.value
    assert f"\n-- Process {which} terminated with the following error:\n" in str(error)
    assert str(error).endswith(f"ValueError: process {which} wants to\n")
    assert error.error_index == which
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    del caught, error
    assert not left_since(before)


@METHODS
def test_an_exit_code_is_raised(method: str) -> None:
    with pytest.raises(mp.ProcessExitedException, match="process 0 terminated with exit code 9"):
        mp.start_processes(exit_with, (9,), nprocs=2, start_method=method)


@METHODS
def test_a_signal_is_raised(method: str) -> None:
    with pytest.raises(mp.ProcessExitedException, match="process 0 terminated with signal SIGKI"):
        mp.start_processes(end_by, (int(signal.SIGKILL),), nprocs=2, start_method=method)


def test_a_context_waits() -> None:
    context = mp.spawn(fail_if, (5,), nprocs=2, join=False)
    assert context is not None
    assert not context.join(timeout=0)
    assert len(set(context.pids())) == 2
    os.kill(context.pids()[1], signal.SIGKILL)
    with pytest.raises(mp.ProcessExitedException) as caught:
        context.join()
    assert (caught.value.error_index, caught.value.exit_code) == (1, -9)
    assert caught.value.signal_name == "SIGKILL"
    assert context.join()


def test_of_several_failures_the_first_one_is_raised(tmp_path: Path) -> None:
    """A rank fails because another one has failed, and may end before that."""
    context = mp.spawn(fail_after_the_first, (str(tmp_path),), nprocs=2, join=False)
    assert context is not None
    assert wait_until(context._error_files[1].exists)
    (tmp_path / "it is there").touch()
    for process in context.processes:
        process.join()
    with pytest.raises(mp.ProcessRaisedException, match="the cause"):
        context.join()


def test_what_cannot_be_pickled_starts_nothing() -> None:
    before = Leftovers.now()
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        mp.spawn(lambda number: None, nprocs=2)
    assert not left_since(before)


def test_another_start_method_is_named() -> None:
    with pytest.warns(FutureWarning, match="start_processes"):
        mp.spawn(tell, (mp.get_context("spawn").SimpleQueue(), ""), start_method="fork")


STARTS = """
import os, pathlib, signal, sys
import mpgrad.multiprocessing as mp

def waits(number, folder):
    pathlib.Path(folder, str(os.getpid())).touch()
    signal.pause()

if __name__ == "__main__":
    mp.start_processes(waits, (sys.argv[1],), nprocs=2, start_method=sys.argv[2])
"""


@METHODS
def test_they_end_with_their_parent(method: str, tmp_path: Path) -> None:
    script, folder = tmp_path / "script.py", tmp_path / "pids"
    script.write_text(STARTS)
    folder.mkdir()
    parent = subprocess.Popen([sys.executable, str(script), str(folder), method])
    assert wait_until(lambda: len(list(folder.iterdir())) == 2)
    parent.kill()
    parent.wait(HANGS_S)
    pids = [int(file.name) for file in folder.iterdir()]
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def add_numbers(number: int, ranks: int, port: int, queue: Any) -> None:
    dist.init_process_group("gloo", f"tcp://localhost:{port}", rank=number, world_size=ranks)
    total = mg.tensor(float(number + 1))
    dist.all_reduce(total)
    queue.put(total.item())
    dist.barrier()
    dist.destroy_process_group()


@METHODS
def test_they_are_ranks_without_a_key_file(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MPGRAD_GROUP_KEY_FILE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    queue = mp.get_context(method).SimpleQueue()
    with reserved_port("127.0.0.1") as port:
        mp.start_processes(add_numbers, (3, port, queue), nprocs=3, start_method=method)
    assert [queue.get() for _ in range(3)] == [6.0, 6.0, 6.0]
    assert (tmp_path / "mpgrad" / "group-key").stat().st_mode & 0o777 == 0o600
