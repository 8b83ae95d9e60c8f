"""Batches that worker processes make: the same, in the same order, and nothing is left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info
from mpgrad.data.worker_pool import WorkerPool
from tests.leftovers import Leftovers, is_alive, left_since, wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux"),
]


class Images(Dataset):
    """Sample k is an array of k's, k, and a text."""

    def __init__(self, count: int, side: int = 4) -> None:
        self.count, self.side = count, side

    def __getitem__(self, index: int) -> tuple[np.ndarray, int, str]:
        return np.full((self.side, self.side), index, np.float32), index, f"nr. {index}"

    def __len__(self) -> int:
        return self.count


class Pids(Images):
    """Sample k is the process that made it."""

    def __getitem__(self, index: int) -> Any:
        return os.getpid()


def plain(batch: Any) -> Any:
    """A batch without tensors, to compare."""
    return [part.tolist() if isinstance(part, mg.Tensor) else part for part in batch]


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"drop_last": True}])
def test_the_batches_do_not_depend_on_the_number_of_workers(options: dict[str, Any]) -> None:
    passes = []
    for workers in (0, 1, 3):
        mg.manual_seed(3)
        loader = DataLoader(Images(23), 4, num_workers=workers, **options)
        passes.append([[plain(batch) for batch in loader] for _ in range(2)])
        passes[-1].append(mg.rand(2).tolist())  # the generator is left alike, too
    assert passes[0] == passes[1] == passes[2]


def test_large_batches_are_the_tensors_of_this_process() -> None:
    (batch, *_), *others = DataLoader(Images(8, side=300), 4, num_workers=2)
    assert batch.shape == (4, 300, 300)
    assert batch[3, 2, 1].item() == 3
    batch.add_(1)  # writable
    others.clear()
    gc.collect()
    assert batch[3, 2, 1].item() == 4


def test_a_pass_leaves_nothing_behind() -> None:
    before = Leftovers.now()
    for _ in range(2):
        list(DataLoader(Images(9), 2, num_workers=2))
    for _ in DataLoader(Images(1000), 2, num_workers=2):
        break
    assert left_since(before) == ""


def test_a_loader_that_is_let_go_ends_its_workers() -> None:
    before = Leftovers.now()
    loader = DataLoader(Pids(8), 2, num_workers=2, persistent_workers=True)
    first, second = ({pid for batch in loader for pid in batch.tolist()} for _ in range(2))
    assert len(first) == 2
    assert os.getpid() not in first
    assert first == second
    del loader
    assert left_since(before) == ""


def test_a_pass_that_was_broken_off_does_not_disturb_the_next() -> None:
    loader = DataLoader(Images(20), 2, num_workers=2, persistent_workers=True)
    broken_off = iter(loader)
    next(broken_off)
    assert [plain(batch)[1] for batch in loader] == [[k, k + 1] for k in range(0, 20, 2)]
    with pytest.raises(RuntimeError, match="use persistent_workers=False"):
        next(broken_off)


def test_a_pass_after_ctrl_c_has_its_own_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that nobody has taken is no batch of the next pass."""

    def interrupted(pool: WorkerPool, number: int) -> None:
        raise KeyboardInterrupt

    loader = DataLoader(Images(12), 2, num_workers=2, persistent_workers=True)
    with monkeypatch.context() as patch:
        patch.setattr(WorkerPool, "_received", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(loader)
    assert [plain(batch)[1] for batch in loader] == [[k, k + 1] for k in range(0, 12, 2)]


class Broken(Images):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise KeyError("no such image")
        return index


@pytest.mark.parametrize("persistent", [False, True])
def test_what_a_worker_raises_names_the_worker_and_the_line(persistent: bool) -> None:
    loader = DataLoader(Broken(12), 2, num_workers=2, persistent_workers=persistent)
    batches = iter(loader)
    assert [next(batches).tolist(), next(batches).tolist()] == [[0, 1], [2, 3]]
    with pytest.raises(KeyError) as caught:
        next(batches)
    text = str(caught.value)
    assert "Caught KeyError in DataLoader worker 0.\nOriginal Traceback" in text
    assert 'raise KeyError("no such image")' in text


class Killed(Images):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


class Exits(Images):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            os._exit(3)
        return index


@pytest.mark.parametrize(
    ("dataset", "how"),
    [(Killed(12), "was killed by signal SIGKILL"), (Exits(12), "exited unexpectedly with .* 3")],
)
def test_a_worker_that_dies_is_named(dataset: Images, how: str) -> None:
    before = Leftovers.now()
    taken = []
    with pytest.raises(RuntimeError, match=rf"DataLoader worker 0 \(pid \d+\) {how}"):
        taken.extend(batch.tolist() for batch in DataLoader(dataset, 2, num_workers=2))
    assert taken == [[0, 1], [2, 3]]
    assert left_since(before) == ""


class Unpicklable(Images):
    def __getitem__(self, index: int) -> Any:
        return lambda: index


def test_a_batch_that_cannot_travel_says_so() -> None:
    loader = DataLoader(Unpicklable(2), num_workers=1, collate_fn=list)
    with pytest.raises(Exception, match="A batch has to be pickled on its way out of a worker"):
        next(iter(loader))


class Stuck(Images):
    def __getitem__(self, index: int) -> Any:
        signal.pause()


def test_a_worker_that_takes_too_long() -> None:
    loader = iter(DataLoader(Stuck(2), num_workers=1, timeout=0.1))
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.1 seconds: worker 0"):
        next(loader)


class Numbers(IterableDataset):
    """0, 1, 2 ...; each worker its share."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, 10, step))


def test_an_iterable_dataset_is_shared_among_the_workers() -> None:
    def batches(workers: int, **options: Any) -> list[Any]:
        return [batch.tolist() for batch in DataLoader(Numbers(), num_workers=workers, **options)]

    assert batches(0, batch_size=4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert batches(3, batch_size=2) == [[0, 3], [1, 4], [2, 5], [6, 9], [7], [8]]
    assert batches(3, batch_size=2, drop_last=True) == [[0, 3], [1, 4], [2, 5], [6, 9]]
    assert list(DataLoader(Numbers(), batch_size=None, num_workers=2)) == list(range(10))


class Draws(Images):
    def __getitem__(self, index: int) -> Any:
        return mg.rand(1).item(), np.random.rand(), random.random()


def test_workers_draw_different_numbers_that_a_seed_repeats() -> None:
    def drawn() -> list[Any]:
        mg.manual_seed(1)
        loader = DataLoader(Draws(4), num_workers=2)
        return [plain(batch) for _ in range(2) for batch in loader]

    first = drawn()
    assert len({str(batch) for batch in first}) == 8
    assert drawn() == first


def test_worker_init_fn_and_info() -> None:
    seen = multiprocessing.get_context("fork").SimpleQueue()

    def begun(number: int) -> None:
        info = get_worker_info()
        assert info is not None
        seen.put((number, info.id, info.num_workers, len(info.dataset)))

    list(DataLoader(Images(6), num_workers=2, worker_init_fn=begun))
    assert sorted(seen.get() for _ in range(2)) == [(0, 0, 2, 6), (1, 1, 2, 6)]
    assert get_worker_info() is None


def test_what_worker_init_fn_raises_reaches_the_user() -> None:
    def begun(number: int) -> None:
        raise ValueError(f"no disk for {number}")

    with pytest.raises(ValueError, match="no disk for 0"):
        next(iter(DataLoader(Images(6), num_workers=2, worker_init_fn=begun)))


def test_workers_by_spawn() -> None:
    loader = DataLoader(
        TensorDataset(mg.arange(6)), 2, num_workers=1, multiprocessing_context="spawn"
    )
    assert [batch.tolist() for (batch,) in loader] == [[0, 1], [2, 3], [4, 5]]


PROGRAM = """
import os, signal
import mpgrad as mg
from mpgrad.data import DataLoader, TensorDataset

first = DataLoader(TensorDataset(mg.arange(100)), num_workers=2, persistent_workers=True)
second = DataLoader(TensorDataset(mg.arange(100)), num_workers=1, persistent_workers=True)
next(iter(first)), next(iter(second))
print(*(p.pid for loader in (first, second) for p in loader._pool._processes), flush=True)
%s
"""


@pytest.mark.parametrize(
    ("end", "code"), [("", 0), ("os.kill(os.getpid(), signal.SIGKILL)", -9), ("1 / 0", 1)]
)
def test_workers_end_with_their_process(end: str, code: int, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM % end)
    done = subprocess.run(
        [sys.executable, str(path)], stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == code
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 3
    assert wait_until(lambda: not any(map(is_alive, pids)))


BUSY = """
import multiprocessing, os, signal, sys
from mpgrad.data import DataLoader

class Endless:
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index > 1:
            signal.pause()
        return index

batches = iter(DataLoader(Endless(), num_workers=2))
next(batches), next(batches)  # so both workers have begun
if {forks} and os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
pids = [process.pid for process in multiprocessing.active_children()]
print(*pids, flush=True)
if {stops}:
    os.kill(pids[0], signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGKILL)
"""


EARLY = """
import os, signal, time
from multiprocessing import active_children
from mpgrad.data import DataLoader

class Endless:
    def __len__(self):
        return 100

    def __getitem__(self, index):
        signal.pause()

def outlive(parent=os.getpid()):
    while os.getppid() == parent:
        time.sleep(0.001)

os.register_at_fork(after_in_child=outlive)
batches = iter(DataLoader(Endless(), num_workers=2))
print(*(process.pid for process in active_children()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("forks", "stops"), [(False, False), (True, False), (False, True)])
def test_busy_workers_end_with_their_process(forks: bool, stops: bool, tmp_path: Path) -> None:
    """A batch that never ends, a stopped worker, and a fork that has all descriptors, too."""
    assert_workers_end_with(BUSY.format(forks=forks, stops=stops), tmp_path / "program.py")


def test_workers_end_with_a_process_that_ended_before_they_began(tmp_path: Path) -> None:
    assert_workers_end_with(EARLY, tmp_path / "program.py")


def assert_workers_end_with(program: str, path: Path) -> None:
    """``program`` prints the pids of its workers, and kills itself."""
    path.write_text(program)
    with subprocess.Popen(
        [sys.executable, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        try:
            assert process.wait() == -signal.SIGKILL
            assert len(pids) == 2
            assert wait_until(lambda: not any(map(is_alive, pids)))
        finally:
            for pid in filter(is_alive, pids):
                os.kill(pid, signal.SIGKILL)


def test_a_fork_has_workers_of_its_own() -> None:
    loader = DataLoader(Pids(8), 2, num_workers=1, persistent_workers=True)
    context = multiprocessing.get_context("fork")
    seen = context.SimpleQueue()

    def look() -> set[int]:
        return {pid for batch in loader for pid in batch.tolist()}

    before = look()
    child = context.Process(target=lambda: seen.put(look()))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert not seen.get() & before
    assert look() == before


def test_a_backward_in_workers_takes_batches_of_workers() -> None:
    weight = mg.ones(300 * 300, requires_grad=True)
    with mg.Engine(mode="process", cpu_workers=1):
        for image, index, _ in DataLoader(Images(4, side=300), 2, num_workers=1):
            (image.reshape(2, -1) @ weight).sum().backward()
            assert index.tolist() in ([0, 1], [2, 3])
    assert weight.grad is not None
    assert weight.grad[0].item() == 0 + 1 + 2 + 3
