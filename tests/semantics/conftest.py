"""One engine with two workers for all programs; each leaves nothing in it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import mpgrad as mg
from mpgrad.engine import execution


@pytest.fixture(scope="session")
def session_engine() -> Iterator[mg.Engine]:
    with mg.Engine("process", cpu_workers=2) as engine:
        yield engine


@pytest.fixture
def process_engine(session_engine: mg.Engine) -> Iterator[mg.Engine]:
    """The engine is current (it is in its ``with`` block), and a test leaves nothing in it."""
    yield session_engine
    gc.collect()
    memory = session_engine.statistics().engine_arena
    assert memory is not None
    assert memory.live_blocks == 0, "a program left gradients in the engine's arena"


@pytest.fixture(autouse=True)
def no_word_of_functions_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch has no such warning, and it comes once: in whichever test is the first."""
    monkeypatch.setattr(execution, "warn_of_serial_functions", lambda placed: None)
