"""Which engine serves a backward: of a ``with`` block, of ``set_engine``, or the default one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

import mpgrad as mg
from mpgrad.engine import engine


@pytest.fixture(autouse=True)
def default_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Outside of every block, also of one that a fixture of other tests is in."""
    monkeypatch.setattr(engine, "_stack", [])
    yield
    mg.set_engine(None)


def backward() -> None:
    mg.ones(2, requires_grad=True).sum().backward()


def count(engine: mg.Engine) -> int:
    return engine.statistics().backwards_local


def test_the_engine_that_was_set_serves_outside_of_blocks() -> None:
    mine, inner = mg.Engine("local"), mg.Engine("local")
    mg.set_engine(mine)
    assert mg.current_engine() is mine
    backward()
    with inner:
        assert mg.current_engine() is inner
        backward()
        counts = count(mine), count(inner)
    assert counts == (1, 1)
    backward()
    assert count(mine) == 2
    mg.set_engine(None)
    assert mg.current_engine() is not mine
    mine.close()


def test_the_default_takes_the_place_of_one_that_is_closed() -> None:
    mine = mg.Engine("local")
    mg.set_engine(mine)
    mine.close()
    assert mg.current_engine() is not mine
    with pytest.raises(mg.errors.EngineClosed):
        mg.set_engine(mine)


def test_only_engines_can_be_set() -> None:
    with pytest.raises(TypeError, match="wants an Engine or None, not str"):
        mg.set_engine("process")  # type: ignore[arg-type]


def test_an_engine_that_nobody_uses_says_so_once_at_the_line_of_the_backward() -> None:
    mine = mg.Engine("local", cpu_workers=3)
    with pytest.warns(UserWarning, match="cpu_workers=3 open> is not in use") as said:
        backward()
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backward()
    mine.close()


@pytest.mark.parametrize("use", ["with", "set", "explain", "close", "other"])
def test_an_engine_that_is_used_says_nothing(use: str) -> None:
    mine = mg.Engine("local")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if use == "with":
            with mine:
                backward()
        elif use == "set":
            mg.set_engine(mine)
        elif use == "explain":
            mine.explain(mg.ones(1, requires_grad=True).sum())
        elif use == "close":
            mine.close()
        else:  # somebody has chosen another one
            mg.set_engine(other := mg.Engine("local"))
            backward()
            other.close()
            mine.close()
        backward()
    mine.close()
