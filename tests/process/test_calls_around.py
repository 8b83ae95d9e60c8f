"""What is around a call is around its branch: the working directory, the environment, context
variables, dtypes; when the branch is made again, too. What a call changes there is undone."""

from __future__ import annotations

import contextlib
import contextvars
import decimal
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.calls.kept_branches import BRANCHES
from mpgrad.parallel import placing
from tests.process.test_parallel_map import bits, engine, leaves

__all__ = ["engine"]
pytestmark = pytest.mark.process

CASE: contextvars.ContextVar[Any] = contextvars.ContextVar("CASE", default="none")
SCALE: contextvars.ContextVar[Any] = contextvars.ContextVar("SCALE")


@pytest.fixture(autouse=True)
def every_test_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "RUNS", placing.Runs())
    # Threads that other tests have left could change the directory, too.
    monkeypatch.setattr("mpgrad.wire.state_in_force._is_alone", lambda: True)


def around(_: int = 0) -> tuple[Any, ...]:
    return os.getcwd(), os.environ.get("MPG_CASE"), CASE.get(), decimal.getcontext().prec


def test_a_call_sees_what_is_around_it_now(
    engine: mg.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time anew, also in workers that have run before; a fork sees what was around then."""
    found, expected = [], []
    for case in ("a", "b", None):
        directory = tmp_path / str(case)
        directory.mkdir()
        with (
            contextlib.chdir(directory),
            monkeypatch.context() as patch,
            decimal.localcontext(prec=30 + len(str(case))),
        ):
            if case is not None:
                patch.setenv("MPG_CASE", case)
            token = CASE.set(case)
            found += mg.parallel_map(around, range(3))
            future = mg.fork(around)
            expected += [around()] * 4
            CASE.reset(token)
        found.append(mg.wait(future))
    assert found == expected
    assert mg.parallel_map(around, [0]) == [around()]


def test_a_variable_that_is_gone_is_gone_in_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Set before the workers began, and removed afterwards."""
    monkeypatch.setenv("MPG_CASE", "before")
    with mg.Engine("process", cpu_workers=1):
        assert mg.parallel_map(around, [0])[0][1] == "before"
        monkeypatch.delenv("MPG_CASE")
        assert mg.parallel_map(around, [0])[0][1] is None
        monkeypatch.setenv("MPG_CASE", "after")
        assert mg.parallel_map(around, [0])[0][1] == "after"


def arguments(_: int = 0) -> list[str]:
    return [*sys.argv]


def test_a_call_sees_the_arguments_of_the_program_as_they_are_now(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = ["program", *["file"] * 5000]
    for case in (sys.argv, ["program", "--rate", "1"], ["program", "\udce9", ""], [], long):
        monkeypatch.setattr(sys, "argv", case)
        future = mg.fork(arguments)
        assert mg.parallel_map(arguments, range(3)) == [case] * 3
        assert mg.wait(future) == case


@pytest.mark.parametrize("argv", ["text", [1, np.arange(3)], None])
def test_arguments_that_are_no_texts_are_left_alone(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch, argv: Any
) -> None:
    if argv is None:
        monkeypatch.delattr(sys, "argv")
    else:
        monkeypatch.setattr(sys, "argv", argv)
    found = mg.parallel_map(lambda k: getattr(sys, "argv", None), range(3))
    if engine.mode == "process":
        assert all(type(text) is str for one in found for text in one)
    assert getattr(sys, "argv", None) is argv


def test_the_threads_of_libraries_stay_the_workers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with mg.Engine("process", cpu_workers=1):
        monkeypatch.setenv("OMP_NUM_THREADS", "7")
        assert mg.parallel_map(lambda _: os.environ["OMP_NUM_THREADS"], [0]) == ["1"]


def test_tensors_in_context_variables_are_inputs(engine: mg.Engine) -> None:
    (w,) = leaves(0, (3,))
    SCALE.set(w)
    outs = mg.parallel_map(lambda k: (SCALE.get() * k).sum(), [1.0, 2.0])
    mg.stack(outs).sum().backward()
    assert bits(w.grad) == bits(mg.full((3,), 3.0))


def test_a_context_variable_of_an_item(engine: mg.Engine) -> None:
    own: contextvars.ContextVar[int] = contextvars.ContextVar("own")
    own.set(5)
    found = mg.parallel_map(lambda one: (one.get(), one is own), [own, own])
    assert found == [(5, True)] * 2


def test_a_variable_of_an_installed_package(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    import http  # any installed module that this process and a worker can import

    monkeypatch.setattr(http, "CASE", CASE, raising=False)
    from mpgrad.calls import context_variables

    monkeypatch.setattr(context_variables, "_homes", {})
    CASE.set("there")
    # PyTorch's compiler has some, too, where another test has loaded it.
    (variable,) = context_variables.of_packages(lambda value: value == "there")
    assert context_variables.home_of(variable) == ("http", "CASE")


@pytest.mark.parametrize("mode", ["local", "process"])
def test_a_branch_that_is_made_again_has_what_was_around_it(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backward runs elsewhere: in another directory, with other variables and dtypes."""
    (x,) = leaves(1, (3,))

    def reads(k: float) -> mg.Tensor:
        scale = float(Path("scale").read_text()) * float(os.environ["MPG_CASE"]) * CASE.get()
        return (x.double() * mg.tensor(scale) * float(decimal.Decimal(1) / 3)).sum() * k

    def run() -> list[mg.Tensor]:
        with (
            contextlib.chdir(tmp_path),
            monkeypatch.context() as patch,
            decimal.localcontext(prec=3),
            np.errstate(over="ignore"),
        ):
            patch.setenv("MPG_CASE", "3")
            CASE.set(0.7)
            mg.set_default_dtype(mg.float64)
            try:
                return mg.parallel_map(reads, [1.0, 2.0])
            finally:
                mg.set_default_dtype(mg.float32)

    (tmp_path / "scale").write_text("2")
    with mg.Engine(mode, cpu_workers=2) as engine:
        outs = contextvars.copy_context().run(run)
        BRANCHES.clear()
        for pid in engine.worker_pids():
            os.kill(pid, signal.SIGKILL)
        before = around()
        mg.stack(outs).sum().backward()
        assert np.allclose(x.grad.numpy(), 3 * 2 * 3 * 0.7 * 0.333)  # type: ignore[union-attr]
        assert around() == before
        assert mg.get_default_dtype() is mg.float32


# ---------------------------------------------------------------------- what a call changes


def test_a_changed_directory_is_an_error_and_undone(engine: mg.Engine, tmp_path: Path) -> None:
    here = os.getcwd()
    with pytest.raises(RuntimeError, match="working directory, which would be lost"):
        mg.parallel_map(lambda k: os.chdir(tmp_path), [0])
    assert mg.parallel_map(lambda k: os.getcwd(), range(3)) == [here] * 3
    assert os.getcwd() == here


def test_what_a_library_sets_for_itself_is_no_change(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)

    def compiles(k: int) -> int:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/somewhere"
        return k

    assert mg.parallel_map(compiles, [1, 2]) == [1, 2]
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_a_changed_environment_is_an_error_and_undone(engine: mg.Engine) -> None:
    environ = os.environ

    def sets(k: int) -> None:
        environ["MPG_CASE"] = "lost"

    with pytest.raises(RuntimeError, match=r"'MPG_CASE'.*lost"):
        mg.parallel_map(sets, [0])
    assert {one[1] for one in mg.parallel_map(around, range(3))} == {None}


def test_a_directory_for_a_while_is_no_change(engine: mg.Engine, tmp_path: Path) -> None:
    def visits(k: int) -> str:
        with contextlib.chdir(tmp_path):
            return os.getcwd()

    assert mg.parallel_map(visits, range(3)) == [os.path.realpath(tmp_path)] * 3


def test_a_changed_context_variable_is_an_error(engine: mg.Engine) -> None:
    CASE.set("before")
    with pytest.raises(RuntimeError, match=r"`CASE`.*lost"):
        mg.parallel_map(lambda k: CASE.set(k), [0])
    assert CASE.get() == "before"


def test_settings_of_a_call_do_not_reach_the_next_one(engine: mg.Engine) -> None:
    def sets(k: int) -> Any:
        found = decimal.getcontext().prec, np.get_printoptions()["precision"]
        decimal.getcontext().prec = 50
        np.set_printoptions(precision=3)
        return found

    before = decimal.getcontext().prec, np.get_printoptions()["precision"]
    assert mg.parallel_map(sets, range(6)) == [before] * 6
    assert (decimal.getcontext().prec, np.get_printoptions()["precision"]) == before


OTHERS = ["other", "arguments"]


@pytest.mark.parametrize("changes", ["sets", "pops", "deletes", "spoils"])
def test_arguments_that_a_call_changes_are_those_of_before(engine: mg.Engine, changes: str) -> None:
    def change(k: int) -> None:
        if changes == "sets":
            sys.argv = OTHERS
        elif changes == "pops":
            sys.argv.pop()
        elif changes == "deletes":
            del sys.argv
        else:
            sys.argv[:] = [np.arange(3)]  # type: ignore[list-item]

    before, texts = sys.argv, [*sys.argv]
    mg.parallel_map(change, range(3))
    assert mg.parallel_map(arguments, range(3)) == [texts] * 3
    assert sys.argv is before
    assert before == texts
    assert OTHERS == ["other", "arguments"]


@pytest.fixture(autouse=True)
def own_context() -> Iterator[None]:
    before = {one: one.get(None) for one in (CASE, SCALE)}
    yield
    for one, value in before.items():
        one.set(value if value is not None else "none")


def test_a_directory_that_was_removed(tmp_path: Path) -> None:
    """It was so: no process could be started, and the error named nothing."""
    (tmp_path / "gone").mkdir()
    with contextlib.chdir(tmp_path):
        os.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        with mg.Engine("process", cpu_workers=1):
            assert mg.parallel_map(lambda k: 2 * k, [1, 2]) == [2, 4]


def test_a_time_zone(engine: mg.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    mg.parallel_map(abs, [1])
    try:
        with monkeypatch.context() as patch:
            patch.setenv("TZ", "Asia/Tokyo")
            time.tzset()
            assert mg.parallel_map(lambda _: time.localtime(0).tm_hour, [1]) == [9]
    finally:
        time.tzset()
    assert mg.parallel_map(lambda _: time.localtime(0).tm_hour, [1]) == [time.localtime(0).tm_hour]


def test_a_path_that_is_added_later(
    engine: mg.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was so: `import` in a call did not find what the caller finds."""
    mg.parallel_map(abs, [1])
    (tmp_path / "added_later.py").write_text("VALUE = 3\n")

    def reads(_: int) -> int:
        import added_later  # type: ignore[import-not-found]

        return int(added_later.VALUE)

    for change in (lambda one: sys.path.append(one), lambda one: sys.path.insert(0, one)):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "path", [*sys.path])
            change(str(tmp_path))
            assert mg.parallel_map(reads, [1, 2]) == [3, 3]
    sys.modules.pop("added_later", None)


def test_recording_that_the_call_has_begun(engine: mg.Engine) -> None:
    """It was so: the result of a call in ``no_grad`` had no history, whatever the call did."""
    w = mg.tensor([1.0, 2.0], requires_grad=True)

    def energy(k: float) -> tuple[mg.Tensor, mg.Tensor]:
        with mg.enable_grad():
            found = (w * k).square().sum()
            return mg.grad(found, w, retain_graph=True)[0], found

    with mg.no_grad():
        force, found = mg.parallel_map(energy, [2.0])[0]
        assert (force.requires_grad, found.requires_grad) == (False, True)
    found.backward()
    assert bits(w.grad) == bits(force)
