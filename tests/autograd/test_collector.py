"""The garbage collector is held off while the engine works on its tables, and only then."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd.running.collector import HELD_ABOVE, collector_held


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was_enabled else gc.disable)()


def test_it_is_off_inside_and_on_again_behind() -> None:
    with collector_held():
        assert not gc.isenabled()
        with collector_held():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_after_an_error() -> None:
    with pytest.raises(KeyError), collector_held():
        raise KeyError
    assert gc.isenabled()


def test_it_stays_off_where_the_user_wants_that() -> None:
    gc.disable()
    with collector_held():
        pass
    assert not gc.isenabled()


def test_the_last_thread_switches_it_on() -> None:
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with collector_held():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    with collector_held():
        pass
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_a_forked_child_has_it_on() -> None:
    with collector_held():
        pid = os.fork()
        if pid == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert gc.isenabled()


def _collections_during(loss: mg.Tensor) -> int:
    count = 0

    def note(phase: str, info: dict[str, Any]) -> None:
        nonlocal count
        count += phase == "start"

    with mg.Engine("local"):
        _chain(1).backward()  # it loads the engine
        gc.collect()
        gc.callbacks.append(note)
        try:
            loss.backward()
        finally:
            gc.callbacks.remove(note)
    return count


def _chain(nodes: int, hook: Any = None) -> mg.Tensor:
    x = mg.ones(2, requires_grad=True)
    for _ in range(nodes):
        x = x * 1.0
    if hook is not None:
        x.register_hook(hook)
    return x.sum()


def test_a_large_backward_of_operators_is_not_interrupted() -> None:
    # Each time it is let go, one collection at most makes up for what was held off.
    assert _collections_during(_chain(3 * HELD_ABOVE)) <= 3


def test_user_code_runs_with_the_collector_on() -> None:
    seen = []
    _collections_during(_chain(HELD_ABOVE, lambda grad: seen.append(gc.isenabled())))
    assert seen == [True]
