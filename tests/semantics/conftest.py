"""One engine with two workers for all programs; each leaves nothing in it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import mpgrad as mg
from mpgrad.engine import execution
from mpgrad.engine.engine import _stack


@pytest.fixture(scope="session")
def session_engine() -> Iterator[mg.Engine]:
    with mg.Engine("process", cpu_workers=2) as engine:
        _stack.remove(engine)  # tests of other folders follow in this process
        yield engine
        _stack.append(engine)


@pytest.fixture
def process_engine(session_engine: mg.Engine) -> Iterator[mg.Engine]:
    """The engine is current, as in its ``with`` block, and a test leaves nothing in it."""
    _stack.append(session_engine)
    yield session_engine
    _stack.remove(session_engine)
    gc.collect()
    memory = session_engine.statistics().engine_arena
    assert memory is not None
    assert memory.live_blocks == 0, "a program left gradients in the engine's arena"


@pytest.fixture(autouse=True)
def no_word_of_functions_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch has no such warning, and it comes once: in whichever test is the first."""
    monkeypatch.setattr(execution, "warn_of_serial_functions", lambda placed: None)
