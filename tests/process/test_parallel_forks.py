"""fork and wait: a call that runs while the caller goes on."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.errors import CoordinatorLost
from tests.leftovers import wait_until
from tests.process.test_parallel_map import bits, engine, leaves

__all__ = ["engine"]
pytestmark = pytest.mark.process


def product(x: mg.Tensor, w: mg.Tensor, factor: float = 1.0) -> mg.Tensor:
    return (x * w * factor).sum()


def test_results_and_gradients(engine: mg.Engine) -> None:
    w, *xs = leaves(0, (3,), *[(3,)] * 9)
    futures = [mg.fork(product, x, w, factor=2.0) for x in xs]
    outs = [mg.wait(future) for future in futures]
    mg.stack(outs).sum().backward()
    gradients = bits(w.grad, *[x.grad for x in xs])
    for one in (w, *xs):
        one.grad = None
    mg.stack([product(x, w, 2.0) for x in xs]).sum().backward()
    assert gradients == bits(w.grad, *[x.grad for x in xs])


def test_the_order_of_waiting_changes_no_bit(engine: mg.Engine) -> None:
    found = []
    for order in (1, -1):
        w, *xs = leaves(1, (50,), *[(50,)] * 6)
        futures = [mg.fork(product, x, w) for x in xs]
        for future in futures[::order]:
            future.result()
        mg.stack([future.result() for future in futures]).sum().backward()
        found.append(bits(w.grad))
    assert found[0] == found[1]


def test_callbacks_as_completed_and_asyncio(engine: mg.Engine) -> None:
    futures = [mg.fork(lambda k: k * 2, k) for k in range(4)]
    done = threading.Event()
    futures[0].add_done_callback(lambda future: done.set())
    found = {future.result() for future in concurrent.futures.as_completed(futures, timeout=60)}
    assert found == {0, 2, 4, 6}
    assert done.wait(60)

    async def main() -> list[Any]:
        return await asyncio.gather(
            *[asyncio.wrap_future(mg.fork(lambda k: k + 1, k)) for k in range(3)]
        )

    assert asyncio.run(main()) == [1, 2, 3]


def test_an_error_comes_from_wait(engine: mg.Engine) -> None:
    future = mg.fork(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        mg.wait(future)


def test_an_error_that_nobody_fetches_is_warned_of(engine: mg.Engine) -> None:
    future = mg.fork(lambda: 1 / 0)
    concurrent.futures.wait([future], timeout=60)
    with pytest.warns(RuntimeWarning, match="division by zero"):
        future.__del__()
    future.exception()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_callback_that_ends_the_program_ends_no_other_call(engine: mg.Engine) -> None:
    futures = [mg.fork(lambda k: k, k) for k in range(20)]
    for future in futures:
        with contextlib.suppress(SystemExit):  # it runs here if the call has ended
            future.add_done_callback(lambda _: sys.exit(3))
    assert [future.result(60) for future in futures] == list(range(20))
    failing = [mg.fork(lambda: 1 / 0) for _ in range(20)]
    for future in failing:
        with contextlib.suppress(SystemExit):
            future.add_done_callback(lambda _: sys.exit(3))
    assert {type(future.exception(60)) for future in failing} == {ZeroDivisionError}
    assert mg.fork(lambda: 1).result(60) == 1


def test_a_thread_that_cannot_start_is_an_error_and_no_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with mg.Engine("process", cpu_workers=1):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="new thread"):
                mg.fork(lambda: 1)
        assert mg.fork(lambda: 2).result(60) == 2


def test_a_signal_handler_that_interrupts_a_fork_must_not_wait_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a handler that comes between two lines of ``fork``, here always at the same one."""
    write, errors = os.eventfd_write, list[BaseException]()

    def interrupted(fd: int, value: int) -> None:
        monkeypatch.setattr(os, "eventfd_write", write)
        try:
            mg.fork(lambda: 1).result(60)
        except RuntimeError as error:
            errors.append(error)
        write(fd, value)

    with mg.Engine("process", cpu_workers=1):
        assert mg.fork(lambda: 1).result(60) == 1
        monkeypatch.setattr(os, "eventfd_write", interrupted)
        assert mg.fork(lambda: 2).result(60) == 2
        assert mg.fork(lambda: 3).result(60) == 3
    assert [str(error)[:24] for error in errors] == ["a signal handler waits f"]


def test_a_fork_inside_a_branch_runs_there(engine: mg.Engine) -> None:
    (x,) = leaves(2, (3,))
    out = mg.wait(mg.fork(lambda: mg.wait(mg.fork(lambda: (x * 2).sum()))))
    out.backward()
    assert bits(x.grad) == bits(mg.full((3,), 2.0))


def test_no_futures() -> None:
    with pytest.raises(TypeError, match="Future"):
        mg.wait(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="callable"):
        mg.fork(3)  # type: ignore[arg-type]


def test_closing_the_engine_ends_what_is_under_way() -> None:
    with mg.Engine("process", cpu_workers=1):
        futures = [mg.fork(_waits_for_ever) for _ in range(8)]
        assert futures[-1].cancel()
    for future in futures[:-1]:
        with pytest.raises(mg.errors.EngineClosed):
            future.result(60)


def _waits_for_ever() -> None:
    threading.Event().wait()


@pytest.mark.parametrize("is_engine_used", [False, True])
def test_a_child_of_a_fork_of_the_process_is_told(is_engine_used: bool) -> None:
    with mg.Engine("process", cpu_workers=1):
        future = mg.fork(_waits_for_ever)
        while not future.running():
            pass
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            try:
                if is_engine_used:
                    mg.tensor([1.0], requires_grad=True).sum().backward()
                future.result(60)
            except mg.errors.EngineClosed:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(mg.errors.EngineClosed):
        future.result(60)


def test_a_fork_that_comes_as_the_serving_thread_ends() -> None:
    """The thread has waited for the last time, and has not got the lock yet."""
    late: list[concurrent.futures.Future[Any]] = []

    class TimeIsOver(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            if not late:
                late.append(mg.fork(lambda: 2))
            return False

    with mg.Engine("process", cpu_workers=1) as engine:
        engine.execution_for_calls().submitter._condition = TimeIsOver()
        assert mg.fork(lambda: 1).result(60) == 1
        assert wait_until(lambda: late)
        assert late[0].result(60) == 2


def test_a_coordinator_that_dies_as_a_result_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> Any:
        raise CoordinatorLost("it has gone")

    monkeypatch.setattr("mpgrad.engine.submitter.opened", lost)
    with (
        mg.Engine("process", cpu_workers=1),
        pytest.raises(CoordinatorLost, match="it has gone"),
    ):
        mg.fork(lambda: 1).result(60)


def test_a_change_while_it_runs_is_an_error(tmp_path: Any) -> None:
    path = str(tmp_path / "go")
    os.mkfifo(path)

    def reads(x: mg.Tensor) -> mg.Tensor:
        with open(path) as file:
            file.read()
        return x * 2

    with mg.Engine("process", cpu_workers=1):
        x = mg.ones(3)
        future = mg.fork(reads, x)
        x.add_(1)
        with open(path, "w") as file:
            file.write("go")
        with pytest.raises(RuntimeError, match="changed in place while"):
            future.result(60)


def test_a_callback_must_not_wait_for_another_fork(tmp_path: Any) -> None:
    """It would wait for ever: its own thread receives the results."""
    path = str(tmp_path / "go")
    os.mkfifo(path)

    def reads() -> str:
        with open(path) as file:
            return file.read()

    heard: list[Any] = []
    ended = threading.Event()

    def waits(_: Any) -> None:
        try:
            heard.append(second.result())
        except RuntimeError as error:
            heard.append(str(error))
        ended.set()

    with mg.Engine("process", cpu_workers=2):
        second = mg.fork(reads)
        first = mg.fork(abs, -1)
        first.add_done_callback(waits)
        assert ended.wait(60)
        with open(path, "w") as file:
            file.write("go")
        assert (first.result(), second.result(60)) == (1, "go")
    assert "waits for another fork" in heard[0]


def test_a_result_that_grows_when_its_call_runs_again_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds no room, and its worker lets it go for that of the next call; the second time it had
    found no room either, and gave zeros."""
    monkeypatch.setenv("MPGRAD_BRANCH_LIMIT", "1M")
    path = tmp_path / "runs"

    def grows(x: mg.Tensor) -> mg.Tensor:
        path.write_text(text := (path.read_text() if path.exists() else "") + "x")
        return x.sum() * mg.ones((5 + len(text)) << 20)

    (x,) = leaves(3, (3,))
    with (
        mg.Engine("process", cpu_workers=1),
        pytest.raises(mg.errors.MpgradError, match="larger result when it ran again"),
    ):
        mg.parallel_map(grows, [x, x])


# ---------------------------------------------------------------------- buffers


def normalized(norm: mg.nn.Module, x: mg.Tensor) -> mg.Tensor:
    return norm(x).sum()


def test_forks_side_by_side_that_change_one_buffer_are_an_error(engine: mg.Engine) -> None:
    """It was so: in workers each began from the same value, in local one after another."""
    norm, (x,) = mg.nn.BatchNorm1d(3), leaves(1, (4, 3))
    first, second = (mg.fork(normalized, norm, x) for _ in range(2))
    with pytest.raises(RuntimeError, match=r"a buffer of shape .* has changed"):
        _ = [mg.wait(future) for future in (first, second)]
    mg.wait(mg.fork(normalized, mg.nn.BatchNorm1d(3), x))


def test_a_fork_that_reads_what_one_before_it_changes_is_an_error(engine: mg.Engine) -> None:
    norm, (x,) = mg.nn.BatchNorm1d(3), leaves(1, (4, 3))
    first = mg.fork(normalized, norm, x)
    second = mg.fork(lambda: norm.running_mean.sum())
    with pytest.raises(RuntimeError, match="Wait for the first result"):
        _ = [mg.wait(future) for future in (first, second)]


def test_forks_one_after_another_change_a_buffer_as_a_loop_does(engine: mg.Engine) -> None:
    norm, alone, (x,) = mg.nn.BatchNorm1d(3), mg.nn.BatchNorm1d(3), leaves(1, (4, 3))
    reading = mg.fork(lambda: norm.running_mean.sum())  # begun before the change
    for _ in range(3):
        mg.wait(mg.fork(normalized, norm, x))
        normalized(alone, x)
    assert mg.wait(reading).item() == 0.0
    assert bits(norm.running_mean, norm.running_var) == bits(alone.running_mean, alone.running_var)
