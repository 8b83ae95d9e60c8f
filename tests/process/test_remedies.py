"""What helps, as the warning of a Function that stays in the client says: it breaks nothing."""

from __future__ import annotations

import collections
import contextvars
import functools
import heapq
import io
import itertools
import logging
import operator
import os
import queue
import random
import threading
import time
from collections.abc import Callable
from random import random as draw
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.random import rand as draw_of_numpy

import mpgrad as mg
from mpgrad.calls.custom_functions.run_on import decide

pytestmark = pytest.mark.process

SEED = "np.random.default_rng(ctx.seed)"
ON_CTX = "or note it in a list on ctx"
#: It travels, and a worker finds the change after the run.
FOUND = ""
IN_FORWARD = "do that in forward and pass the result through ctx"
WORKER, CLIENT = 'run_on = "worker"', 'run_on = "client"'

HISTORY: list[Any] = []
TABLE: dict[str, int] = {}
SEEN: set[int] = set()
RECENT: collections.deque[int] = collections.deque()
COUNTS: collections.Counter[str] = collections.Counter()
GROUPS: collections.defaultdict[str, list[int]] = collections.defaultdict(list)
BYTES = bytearray(4)
NUMBERS = itertools.count()
LETTERS = iter("abc")
LOCK, GATE, TASKS = threading.Lock(), threading.Event(), queue.Queue[int]()
CURRENT = contextvars.ContextVar("CURRENT", default=1)
TEXT = io.StringIO()
LOG = logging.getLogger("tests.remedies")
RNG, MERSENNE, OLD = default_rng(0), random.Random(0), np.random.RandomState(0)
LARGE = np.zeros(1 << 18)
calls = 0


class Meter:
    """Its methods change it."""

    def __init__(self) -> None:
        self.count = 0

    def update(self) -> None:
        self.count += 1

    def tick(self) -> None:
        self.update()

    @property
    def following(self) -> int:
        self.count += 1
        return self.count

    def __iter__(self) -> Any:
        self.count += 1
        return iter(())


class Settings:
    """Its methods do not."""

    def __init__(self) -> None:
        self.scale = 2.0

    def scaled(self, x: Any) -> Any:
        return x * self.scale


METER, SETTINGS = Meter(), Settings()


def record(history: list[Any]) -> None:
    history.append(1)


def record_more(history: list[Any]) -> None:
    history += [1]


@functools.lru_cache
def doubled(x: float) -> float:
    return 2 * x


def write_global() -> None:
    global calls
    calls += 1


def write_nonlocal() -> Callable[[], None]:
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1

    return count


count_in_closure = write_nonlocal()


def other_name() -> None:
    history = HISTORY
    history += [1]


#: What backward does -> what helps.
KINDS: dict[str, tuple[Callable[[], Any], str]] = {
    "np.random": (lambda: np.random.rand(), SEED),
    "random": (lambda: random.random(), SEED),
    "random by name": (lambda: draw(), SEED),
    "np.random by name": (lambda: draw_of_numpy(), SEED),
    "shuffle": (lambda: random.shuffle([1, 2]), SEED),
    "Generator": (lambda: RNG.normal(), SEED),
    "Random": (lambda: MERSENNE.random(), SEED),
    "RandomState": (lambda: OLD.rand(), SEED),
    "mpgrad's": (lambda: mg.randn(3), SEED),
    "dropout": (lambda: mg.nn.functional.dropout(mg.ones(3)), SEED),
    "in place": (lambda: mg.ones(3).normal_(), SEED),
    "seeding": (lambda: mg.manual_seed(0), SEED),
    "append": (lambda: HISTORY.append(1), FOUND),
    "append by its class": (lambda: list.append(HISTORY, 1), FOUND),
    "append in a helper": (lambda: record(HISTORY), FOUND),
    "+= in a helper": (lambda: record_more(HISTORY), FOUND),
    "+= by another name": (other_name, FOUND),
    "heap": (lambda: heapq.heappush(HISTORY, 1), FOUND),
    "setitem": (lambda: operator.setitem(TABLE, "k", 1), FOUND),
    "update": (lambda: TABLE.update({str(len(TABLE)): 1}), FOUND),
    "setdefault": (lambda: TABLE.setdefault(str(len(TABLE)), 1), FOUND),
    "add": (lambda: SEEN.add(1), FOUND),
    "appendleft": (lambda: RECENT.appendleft(1), FOUND),
    "Counter": (lambda: COUNTS.update("a"), FOUND),
    "defaultdict": (lambda: GROUPS["k"].append(1), FOUND),
    "extend bytes": (lambda: BYTES.extend(b"a"), FOUND),
    "large array": (lambda: LARGE.fill(1), FOUND),
    "global": (write_global, ON_CTX),
    "nonlocal": (count_in_closure, ON_CTX),
    "setattr": (lambda: setattr(SETTINGS, "scale", 2.0), ON_CTX),
    "globals": (lambda: globals().update(calls=1), ON_CTX),
    "count": (lambda: next(NUMBERS), ON_CTX),
    "iterator": (lambda: next(LETTERS), ON_CTX),
    "lock": (lambda: LOCK.locked(), ON_CTX),
    "event": (lambda: GATE.set(), ON_CTX),
    "queue": (lambda: TASKS.put(1), ON_CTX),
    "context variable": (lambda: CURRENT.set(2), ON_CTX),
    "stream": (lambda: TEXT.write("a"), FOUND),
    "method": (lambda: METER.update(), FOUND),
    "method of a method": (lambda: METER.tick(), FOUND),
    "property": (lambda: METER.following, FOUND),
    "special method": (lambda: list(METER), FOUND),
    "bound method": ((lambda update=METER.update: update()), FOUND),
    "file": (lambda: open(os.devnull).close(), IN_FORWARD),
    "array file": (lambda: np.save(os.devnull, np.ones(1)), IN_FORWARD),
    "environment": (lambda: os.environ.update(A="1"), IN_FORWARD),
    "getenv": (lambda: os.getenv("A"), IN_FORWARD),
    "directory": (lambda: os.chdir("."), IN_FORWARD),
    "zone": (lambda: time.localtime(), IN_FORWARD),
    "handler": (lambda: LOG.addHandler(logging.NullHandler()), IN_FORWARD),
    "level": (lambda: LOG.setLevel(10), IN_FORWARD),
    "thread": (lambda: threading.Thread(target=print).start(), IN_FORWARD),
    "cache": (lambda: doubled.cache_clear(), IN_FORWARD),
    "process": (lambda: os.getpid(), IN_FORWARD),
}


def function_of(action: Callable[[], Any], where: str | None = None) -> type[mg.Function]:
    class Does(mg.Function):
        run_on = where

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            action()
            return grad * 2

    return Does


@pytest.mark.parametrize("name", [name for name in KINDS if KINDS[name][1] != FOUND])
def test_no_promise_is_asked_for(name: str) -> None:
    action, help_ = KINDS[name]
    decision = decide(function_of(action))
    reason = decision.reason
    assert len(decision.line.split()) <= 30
    assert CLIENT in decision.line
    assert WORKER not in decision.line
    assert help_ in reason
    assert CLIENT in reason
    assert WORKER not in reason


@pytest.mark.parametrize("name", [name for name in KINDS if KINDS[name][1] == FOUND])
def test_a_change_is_found_and_the_backward_repeated(name: str, engine: mg.Engine) -> None:
    function = function_of(KINDS[name][0])
    assert decide(function).run_on == "worker"
    with pytest.warns(mg.errors.PerformanceWarning) as said:
        assert gradient(function)[0] == [4.0] * 3
    (text,) = [str(one.message) for one in said if "Does" in str(one.message)]
    assert "changes" in text
    assert len(text.split()) <= 32
    assert CLIENT in text
    assert WORKER not in text
    assert decide(function).run_on == "client"


READS: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda x: x * SETTINGS.scale,
    "method that changes nothing": lambda x: SETTINGS.scaled(x),
    "item": lambda x: x * SCALES[1],
    "loop": lambda x: sum(x * scale for scale in SCALES),
    "own list": lambda x: own_list(x),
    "own sum": lambda x: own_sum(x),
    "get": lambda x: x * FACTORS.get("b", 1.0),
}
SCALES, FACTORS = [2.0, 3.0], {"b": 4.0}


def own_list(x: Any) -> Any:
    found = []
    for scale in SCALES:
        found.append(scale)  # noqa: PERF402
    return x * found[-1]


def own_sum(x: Any) -> Any:
    total = 0.0
    for scale in SCALES:
        total += scale
    return x * total


def reading(read: Callable[[Any], Any], where: str | None = None) -> type[mg.Function]:
    class Reads(mg.Function):
        run_on = where

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return read(grad)

    return Reads


def gradient(function: type[mg.Function], *args: Any) -> tuple[list[float], Any]:
    """The gradient of two calls, and the first call's ``grad_fn``."""
    x = mg.ones(3, requires_grad=True)
    y = function.apply(x, *args)
    (y + function.apply(x, *args)).sum().backward()
    return x.grad.tolist(), y.grad_fn


@pytest.mark.parametrize("name", READS)
def test_what_is_only_read_needs_no_remedy(name: str, engine: mg.Engine) -> None:
    function = reading(READS[name])
    assert decide(function).run_on == "worker"
    with mg.Engine("local"):
        here, _ = gradient(function)
    assert gradient(function)[0] == here
    assert decide(function).run_on == "worker"


class Seeded(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, seed: int) -> Any:
        ctx.seed = seed
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        drawn = np.random.default_rng(ctx.seed).normal(size=3) + default_rng(ctx.seed).random()
        return grad * mg.tensor(drawn, dtype=grad.dtype), None


class Noting(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.seen, ctx.number = [], next(NUMBERS)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        ctx.seen.append(float(grad.sum()))
        return grad * ctx.number


def test_what_helps_runs_on_a_worker(engine: mg.Engine) -> None:
    global NUMBERS
    assert [decide(function).run_on for function in (Seeded, Noting)] == ["worker"] * 2
    NUMBERS = itertools.count()
    seeded, (noted, node) = gradient(Seeded, 7)[0], gradient(Noting)
    assert (node.seen, noted) == ([3.0], [1.0] * 3)
    with mg.Engine("local"):
        assert gradient(Seeded, 7)[0] == seeded


def test_a_hook_may_do_it(engine: mg.Engine) -> None:
    HISTORY.clear()
    x = mg.ones(3, requires_grad=True)
    y = reading(lambda grad: grad * 3).apply(x)
    y.register_hook(lambda grad: HISTORY.append(grad.tolist()))
    y.sum().backward()
    assert (HISTORY, x.grad.tolist()) == ([[1.0] * 3], [3.0] * 3)


def test_the_client_does_it_without_a_warning(
    engine: mg.Engine, recwarn: pytest.WarningsRecorder
) -> None:
    HISTORY.clear()
    before = np.random.get_state()
    does = function_of(lambda: HISTORY.append(np.random.rand()), "client")
    assert gradient(does)[0] == [4.0] * 3
    np.random.set_state(before)
    assert [np.random.rand(), np.random.rand()] == HISTORY
    assert [str(one.message) for one in recwarn] == []
