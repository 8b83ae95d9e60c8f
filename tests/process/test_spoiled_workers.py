"""A worker in which user code has broken something is replaced before it gets another task."""

from __future__ import annotations

import builtins
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.workers.health_check import HealthCheck
from tests.process.conftest import check_usable

pytestmark = pytest.mark.process

#: Bytes that a task and its reply need at most, far below those of ``Opens``.
ROOM = 16 << 20


class Spoils(mg.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, what: str) -> Any:
        ctx.what = what
        return x.detach() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        if ctx.what == "numpy":
            np.frombuffer = np.asarray = None  # type: ignore[assignment]
            raise LookupError("all is broken")
        if ctx.what == "modules":
            del sys.modules["numpy"]
        if ctx.what == "memory":
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + ROOM
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        return grad * 2, None


class Opens(mg.Function):
    """Needs an import and more memory than was left."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.detach() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        import numpy

        return grad * float(numpy.asarray(numpy.ones(10_000_000)).sum())


class Fails(Opens):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        raise LookupError("of the user")


@pytest.fixture
def single() -> Iterator[mg.Engine]:
    with mg.Engine("process", cpu_workers=1) as engine:
        yield engine


@pytest.mark.parametrize("what", ["numpy", "modules", "memory"])
def test_the_next_task_finds_a_sound_worker(single: mg.Engine, what: str) -> None:
    x = mg.ones(2, requires_grad=True)
    y = Spoils.apply(x, what).sum()
    if what == "numpy":
        with pytest.raises(LookupError, match="all is broken"):
            y.backward()
    else:
        y.backward()
        assert x.grad.tolist() == [2.0, 2.0]
        x.grad = None
    Opens.apply(x).sum().backward()
    assert x.grad.tolist() == [1e7, 1e7]
    check_usable()
    assert single.statistics().restarts == 1


def test_an_error_alone_replaces_nobody(single: mg.Engine) -> None:
    with pytest.raises(LookupError):
        Fails.apply(mg.ones(2, requires_grad=True)).sum().backward()
    check_usable()
    assert single.statistics().restarts == 0


def test_what_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    health = HealthCheck()
    assert health.passes(is_thorough=True)
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "len", len.__call__)
        assert health.passes(is_thorough=False)
        assert not health.passes(is_thorough=True)
    with monkeypatch.context() as patch:
        patch.delattr(np, "cosh")
        assert not health.passes(is_thorough=False)
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "msgspec")
        assert not health.passes(is_thorough=True)
    assert health.passes(is_thorough=True)
