"""Groups M and E: backward in several threads at once, and on which thread what happens."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.scheduler.ready_queue import ReadyQueue, ReadyTask
from tests.semantics.paired import error_of, leaf, paired, row

THREADS = 8


def in_threads(functions: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each function gives, all run at once, each on a thread of its own."""
    results: list[Any] = [None] * len(functions)
    barrier = threading.Barrier(len(functions))

    def work(number: int) -> None:
        barrier.wait(60)
        try:
            results[number] = functions[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def whole(lib: Any, *shape: int, seed: int = 0) -> Any:
    """A leaf of small whole numbers: sums of them are exact in any order."""
    numbers = np.random.default_rng((seed, *shape)).integers(-8, 9, shape)
    return lib.tensor(numbers.astype(np.float64)).requires_grad_()


@paired("M7")
def test_backwards_of_disjoint_graphs(lib: Any) -> Any:
    def train(seed: int) -> Any:
        x = leaf(lib, 5, seed=seed)
        for _ in range(10):
            (x * x).exp().sum().backward()
        return x.grad

    return in_threads([lambda seed=seed: train(seed) for seed in range(THREADS)])


@paired("M7")
def test_a_shared_leaf_gets_the_sum(lib: Any) -> Any:
    x = whole(lib, 16)

    def work(seed: int) -> None:
        for _ in range(20):
            (x * whole(lib, 16, seed=seed).detach()).sum().backward()

    assert in_threads([lambda seed=seed: work(seed) for seed in range(THREADS)]) == [None] * THREADS
    return x.grad


@paired("M7")
def test_a_shared_graph_that_is_kept(lib: Any) -> Any:
    x, w = whole(lib, 4, 4), whole(lib, 4, 4, seed=1)
    total = (x @ w).sum()

    def work() -> None:
        for _ in range(10):
            total.backward(retain_graph=True)

    assert in_threads([work] * THREADS) == [None] * THREADS
    return x.grad, w.grad


@paired("M7")
def test_grad_of_a_shared_graph(lib: Any) -> Any:
    x = leaf(lib, 6)
    total = (x.exp() * x).sum()
    grads = in_threads([lambda: lib.autograd.grad(total, x, retain_graph=True)[0]] * THREADS)
    return grads, x.grad


@paired("M7")
def test_branches_behind_a_shared_trunk(lib: Any) -> Any:
    """Each thread runs its own branch into what all share, which keeps nothing to be freed."""
    x = whole(lib, 8)
    trunk = x * 3

    def work(number: int) -> None:
        (trunk + number).sum().backward(retain_graph=True)

    assert in_threads([lambda n=n: work(n) for n in range(THREADS)]) == [None] * THREADS
    return x.grad


@paired("E7")
def test_the_second_thread_finds_a_shared_graph_freed(lib: Any) -> Any:
    x = leaf(lib, 3)
    total = (x * x).exp().sum()
    outcomes = [in_threads([total.backward])[0] for _ in range(2)]
    assert "second time" in str(outcomes[1])
    return outcomes, x.grad


# mpgrad only: which thread wins is not determined; .grad tells how many did.
@paired("E7", torch=False)
def test_threads_that_race_for_a_shared_graph(lib: Any) -> Any:
    x = whole(lib, 64)
    for _ in range(5):
        x.grad = None
        total = (x * x).sum()
        outcomes = in_threads([total.backward] * 4)
        errors = [error for error in outcomes if error is not None]
        assert all("second time" in str(error) for error in errors), errors
        winners = len(outcomes) - len(errors)
        assert winners >= 1
        assert (x.grad - 2 * winners * x.detach()).abs().sum().item() == 0
    return None


@paired("M11")
def test_grad_mode_belongs_to_a_thread(lib: Any) -> Any:
    seen: list[Any] = []

    def work() -> None:
        seen.append(lib.is_grad_enabled())
        with lib.no_grad():
            seen.append(lib.is_grad_enabled())
        lib.set_grad_enabled(False)
        seen.append((leaf(lib, 2) * 2).requires_grad)

    with lib.no_grad():
        in_threads([work])
        seen.append(lib.is_grad_enabled())
    seen.append(lib.is_grad_enabled())
    return seen


@paired("M11")
def test_grad_mode_inside_of_hooks_on_every_thread(lib: Any) -> Any:
    def work(seed: int) -> Any:
        modes: list[bool] = []
        y = leaf(lib, 3, seed=seed) * 2
        y.register_hook(lambda _: modes.append(lib.is_grad_enabled()))
        with lib.set_grad_enabled(seed % 2 == 0):
            y.backward(lib.ones(3, dtype=lib.float64))
            modes.append(lib.is_grad_enabled())
        return modes

    return in_threads([lambda seed=seed: work(seed) for seed in range(4)])


@paired("M17")
def test_threads_record_parts_of_one_graph(lib: Any) -> Any:
    x = whole(lib, 8)
    parts = in_threads([lambda n=n: (x * float(n)).sum() for n in range(THREADS)])
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    total.backward()
    return x.grad


@paired("M17")
def test_a_graph_made_here_and_run_there(lib: Any) -> Any:
    x = leaf(lib, 4)
    y = (x * x).sum()
    outcome = in_threads([y.backward])
    return outcome, x.grad


@paired("M17")
def test_a_graph_made_there_and_run_here(lib: Any) -> Any:
    x = leaf(lib, 4)
    (y,) = in_threads([lambda: (x * x).exp().sum()])
    y.backward()
    return x.grad


@paired("M1", "M7")
def test_nested_backwards_on_many_threads(lib: Any) -> Any:
    shared = whole(lib, 4, seed=99)

    def work(seed: int) -> Any:
        x = whole(lib, 3, seed=seed)
        y = x * 2

        def hook(_: Any) -> None:
            with lib.enable_grad():
                (shared * 3).sum().backward()

        y.register_hook(hook)
        for _ in range(5):
            y.sum().backward(retain_graph=True)
        return x.grad

    return in_threads([lambda seed=seed: work(seed) for seed in range(THREADS)]), shared.grad


@paired("M15")
def test_a_lock_held_by_the_calling_thread(lib: Any) -> Any:
    """A hook may take a lock that its own caller holds, if that is one that a thread may retake."""
    lock, x = threading.RLock(), leaf(lib, 3)

    def inner_hook(_: Any) -> None:
        with lock:
            pass

    def hook(_: Any) -> None:
        with lock, lib.enable_grad():
            z = leaf(lib, 2) * 2
            z.register_hook(inner_hook)
            z.sum().backward()

    y = x * 2
    y.register_hook(hook)
    with lock:
        y.sum().backward()
    return x.grad


@paired("M14")
def test_a_backward_knows_whether_checkpoints_are_allowed(lib: Any) -> Any:
    engine = lib.autograd.Variable._execution_engine
    seen: list[bool] = []

    def hook(_: Any) -> None:
        seen.append(engine.is_checkpoint_valid())

    def root() -> tuple[Any, Any]:
        x = leaf(lib, 3)
        y = x * 2
        y.register_hook(hook)
        return x, y.sum()

    def nest(_: Any) -> None:
        with lib.enable_grad():
            root()[1].backward()

    x, y = root()
    y.backward()
    x, y = root()
    y.backward(inputs=[x])
    x, y = root()
    lib.autograd.grad(y, x)
    x, y = root()
    z = y * 2
    z.register_hook(nest)
    lib.autograd.grad(z, x)
    seen.append(engine.is_checkpoint_valid())
    return seen


@paired("M16")
def test_a_graph_may_die_on_another_thread_that_holds_a_lock(lib: Any) -> Any:
    lock = threading.RLock()
    deaths: list[str] = []

    class Locks:
        def __del__(self) -> None:
            with lock:
                deaths.append(threading.current_thread().name)

    class Keeps(lib.autograd.Function):  # type: ignore[name-defined, misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.keeps = Locks()
            return x.detach() * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    holder = [Keeps.apply(leaf(lib, 3)).sum()]

    def drop() -> None:
        with lock:
            holder.clear()

    thread = threading.Thread(target=drop, name="dropper")
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return deaths


SCRIPT = """
import threading
import mpgrad as mg

# CPython aborts if a daemon thread is just writing its traceback when the interpreter ends.
threading.excepthook = lambda arguments: None

def work(graph):
    graph.backward()

with mg.Engine("{mode}", cpu_workers=1):
    x = mg.ones(200, 200, requires_grad=True)
    roots = [(x * n).exp().sum() for n in range(4)]
    threads = [threading.Thread(target=work, args=(roots.pop(),), daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    if {joined}:
        for thread in threads:
            thread.join()
print("end")
"""


@row("M13", "M16")
@pytest.mark.process
@pytest.mark.parametrize("mode", ["local", "process"])
@pytest.mark.parametrize("joined", [True, False])
def test_a_script_ends_whatever_its_threads_do(mode: str, joined: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(mode=mode, joined=joined)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


@row("M5")
@pytest.mark.process
def test_what_is_the_users_happens_on_the_calling_thread(process_engine: mg.Engine) -> None:
    seen: set[int] = set()

    class Impure(mg.Function):
        @staticmethod
        def forward(ctx: Any, x: mg.Tensor) -> Any:
            return x.numpy() * 2

        @staticmethod
        def backward(ctx: Any, grad: mg.Tensor) -> Any:
            seen.add(threading.get_ident())
            return grad * 2

    def work() -> int:
        y = Impure.apply(leaf(mg, 3).exp())
        y.register_hook(lambda _: seen.add(threading.get_ident()))
        y.sum().backward()
        return threading.get_ident()

    for _ in range(3):
        seen.clear()
        assert {in_threads([work])[0]} == seen


@row("M8")
@pytest.mark.process
def test_branches_run_on_several_workers() -> None:
    x, w = leaf(mg, 300, 300), leaf(mg, 300, 300, seed=1)
    with mg.Engine("process", cpu_workers=2) as engine:
        left, right = (x @ w).tanh(), (w @ x).tanh()
        (left.sum() + right.sum()).backward()
        tasks = engine.statistics().tasks
    assert tasks["worker 0"] > 0
    assert tasks["worker 1"] > 0


@row("M3")
def test_deeper_backwards_go_first() -> None:
    queue = ReadyQueue()
    shallow, deep = ReadyTask(0, -900.0, 1, 0, 0), ReadyTask(-3, -1.0, 8, 1, 0)
    queue.push(shallow)
    queue.push(deep)
    assert [queue.pop(), queue.pop()] == [deep, shallow]


@row("M3")
@pytest.mark.process
def test_an_inner_backward_overtakes_what_waits(process_engine: mg.Engine) -> None:
    """The only worker has a queue of the outer backward's tasks when the inner one begins."""
    order: list[str] = []
    x = leaf(mg, 40)

    def hook(_: mg.Tensor) -> None:
        with mg.enable_grad():
            (leaf(mg, 2) * 2).exp().sum().backward()
        order.append("inner")

    first = x * 2
    first.register_hook(hook)
    total = first.sum()
    for _ in range(50):
        total = total + (x * 3).exp().sum()
    total.register_hook(lambda _: order.append("outer begins"))
    total.backward()
    assert order == ["outer begins", "inner"]


@paired("L1")
def test_each_thread_gets_its_own_error(lib: Any) -> Any:
    def work(number: int) -> Any:
        def hook(_: Any) -> None:
            raise LookupError(f"thread {number}")

        y = leaf(lib, 3) * 2
        if number % 2:
            y.register_hook(hook)
            return str(error_of(y.sum().backward))
        y.sum().backward()
        return "fine"

    return in_threads([lambda n=n: work(n) for n in range(THREADS)])
