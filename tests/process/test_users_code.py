"""Calls of what users write: classes, caches, files, modules of their own; wherever calls run."""

from __future__ import annotations

import collections
import ctypes
import enum
import functools
import itertools
import logging
import random
import sys
import threading
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from mpgrad.autograd.graph import saved_tensors_hooks
from mpgrad.nn.utils import parametrizations, parametrize
from mpgrad.parallel import placing
from mpgrad.utils.checkpoint import checkpoint
from tests.process.test_parallel_map import engine

__all__ = ["engine"]
pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def calls_are_counted_anew() -> None:
    placing.RUNS.__init__()  # type: ignore[misc]


def bits(tensor: mg.Tensor | None) -> bytes:
    assert tensor is not None
    return tensor.detach().numpy().tobytes()


# ---------------------------------------------------------------------- classes and objects


class Failure(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Slotted:
    x: Any
    n: int = 0


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    x: Any
    y: int


def test_classes_come_back_as_the_clients_own(engine: mg.Engine) -> None:
    def fails(k: int) -> None:
        raise Failure(k, "no")

    with pytest.raises(Failure) as raised:
        mg.parallel_map(fails, [3])
    assert raised.value.code == 3
    x = mg.ones(2, requires_grad=True)
    slotted, color, pair = mg.parallel_map(
        lambda one: one(), [lambda: Slotted(x * 2, 1), lambda: Color.RED, lambda: Pair(x, 2)]
    )
    assert isinstance(slotted, Slotted)
    slotted.x.sum().backward()
    assert x.grad is not None
    assert color is Color.RED
    assert type(pair) is Pair
    assert pair.x is x


@functools.cache
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


class Cached:
    def __init__(self, n: int) -> None:
        self.n = n

    @functools.cached_property
    def square(self) -> int:
        return self.n**2

    @functools.lru_cache  # noqa: B019
    def times(self, k: int) -> int:
        return self.n * k


@functools.singledispatch
def kind_of(value: object) -> str:
    return "object"


@kind_of.register
def _(value: int) -> str:
    return "int"


def test_caches_of_functools(engine: mg.Engine) -> None:
    assert mg.parallel_map(fibonacci, [10, 30]) == [55, 832040]
    assert mg.parallel_map(lambda k: fibonacci(k) + 1, [10]) == [56]
    assert mg.parallel_map(lambda one: one.square, [Cached(3)]) == [9]
    assert mg.parallel_map(Cached(3).times, [2]) == [6]
    assert mg.parallel_map(kind_of, [1, "a"]) == ["int", "object"]


def test_a_function_by_value_stays_one_object(engine: mg.Engine) -> None:
    assert mg.parallel_map(lambda f: f is fibonacci, [fibonacci]) == [True]


def test_loggers(engine: mg.Engine, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("mpgrad.users")
    with caplog.at_level(logging.INFO, "mpgrad.users"):
        mg.parallel_map(lambda k: log.info("item %d", k), range(3))
    assert all(f"item {k}" in caplog.text for k in range(3))


# ---------------------------------------------------------------------- Modules


def test_weights_that_are_computed_before_each_forward(engine: mg.Engine) -> None:
    mg.manual_seed(0)
    for make in (nn.utils.weight_norm, nn.utils.spectral_norm):
        model = make(nn.Linear(3, 2))
        optimizer = mg.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            (out,) = mg.parallel_map(model, [mg.ones(3)])
            optimizer.zero_grad()
            out.sum().backward()
            assert all(p.grad is not None for p in model.parameters())
            optimizer.step()


class Symmetric(nn.Module):
    def forward(self, x: mg.Tensor) -> mg.Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


def test_parametrized_modules(engine: mg.Engine) -> None:
    for number in range(4):
        mg.manual_seed(1)
        model = nn.Linear(3, 3)
        if number == 3:
            parametrize.register_parametrization(model, "weight", Symmetric())
        else:
            make = ("weight_norm", "spectral_norm", "orthogonal")[number]
            getattr(parametrizations, make)(model)
        found = []
        for run in (lambda x: model(x), lambda x: mg.parallel_map(model, [x])[0]):  # noqa: B023
            model.train()
            state = {name: value.clone() for name, value in model.state_dict().items()}
            run(mg.ones(3)).square().sum().backward()
            found.append([bits(p.grad) for p in model.parameters()])
            model.zero_grad()
            model.load_state_dict(state)
        assert found[0] == found[1]
        (back,) = mg.parallel_map(lambda one: one, [model])
        assert parametrize.is_parametrized(back)


def test_a_model_that_was_trained_inside(engine: mg.Engine) -> None:
    def trained(k: float) -> tuple[nn.Module, float]:
        model = nn.Linear(2, 1)
        optimizer = mg.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss = (model(mg.ones(2)) - k).square().sum()
            loss.backward()
            optimizer.step()
        return model, loss.item()

    for model, _ in mg.parallel_map(trained, [1.0, 2.0]):
        assert all(type(p) is nn.Parameter and p.requires_grad for p in model.parameters())
        assert all(p.is_leaf and p.grad is not None for p in model.parameters())
        before = [np.array(p.grad) for p in model.parameters()]
        model(mg.ones(2)).sum().backward()
        assert [p.grad.tolist() for p in model.parameters()] == [(b + 1).tolist() for b in before]


def test_each_module_is_watched_from_its_first_call(engine: mg.Engine) -> None:
    for _ in range(3):  # the third Linear has the calls 1, 2 ... of its own
        seen: list[Any] = []
        model = nn.Linear(2, 2)
        model.register_forward_hook(lambda m, x, y: seen.append(y.shape))  # noqa: B023
        with pytest.raises(RuntimeError, match=r"seen.*lost"):
            mg.parallel_map(model, [mg.ones(2)])


def test_each_function_is_watched_from_its_first_map(engine: mg.Engine) -> None:
    """All of them are called by the same method, ``Function.apply``."""
    for _ in range(3):
        seen: list[int] = []

        class Notes(mg.Function):
            @staticmethod
            def forward(ctx: Any, x: mg.Tensor) -> mg.Tensor:
                seen.append(1)  # noqa: B023
                return x * 2

            @staticmethod
            def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
                return grad * 2

        with pytest.raises(RuntimeError, match=r"Notes\.apply has changed .*seen.*lost"):
            Notes.map([mg.ones(2)])


NOTES: list[int] = []


class Noting:
    """Each of its methods changes a global of this module."""

    def method(self, k: int) -> None:
        NOTES.append(k)

    @staticmethod
    def static(k: int) -> None:
        NOTES.append(k)

    @classmethod
    def of_class(cls, k: int) -> None:
        NOTES.append(k)

    @property
    def last(self) -> int:
        NOTES.append(0)
        return 0

    def __call__(self, k: int) -> None:
        NOTES.append(k)


class Inherits(Noting): ...


@pytest.mark.parametrize(
    "calls",
    [
        Noting().method,
        Noting.static,
        Noting.of_class,
        Noting(),
        Inherits().method,
        lambda k: Noting.static(k),
        lambda k: Noting().last,
        functools.partial(Inherits.of_class),
    ],
)
def test_what_methods_change_is_compared(calls: Any, engine: mg.Engine) -> None:
    with pytest.raises(RuntimeError, match=r"has changed .*NOTES`, which would be lost"):
        mg.parallel_map(calls, [1])


def test_what_is_learned_of_a_callable_is_its_own() -> None:
    """Times, sizes and errors know a method by the class that it is called on."""

    class First(mg.Function): ...

    class Second(mg.Function): ...

    class Proxy:
        """Has each attribute that it is asked for."""

        def __getattr__(self, name: str) -> Proxy:
            return self

        def __call__(self, k: int) -> None: ...

    assert placing._called(proxy := Proxy()) == (proxy, None)
    calls = [First.apply, Second.apply, Noting().method, Inherits().method]
    assert placing.key_of(functools.partial(len, ())) == "builtins.len"
    assert [placing.key_of(call).split(".")[-2:] for call in calls] == [
        ["First", "apply"], ["Second", "apply"], ["Noting", "method"], ["Inherits", "method"],
    ]  # fmt: skip


# ---------------------------------------------------------------------- errors


def test_an_error_of_a_local_class_is_of_that_class_and_keeps_its_cause(engine: mg.Engine) -> None:
    class Diverged(Exception):
        def __init__(self, step: int, why: str) -> None:
            super().__init__(f"step {step}: {why}")
            self.step = step

    def solve(k: int) -> int:
        try:
            return k // (k - 2)
        except ZeroDivisionError as error:
            raise Diverged(k, "singular") from error

    with pytest.raises(Diverged, match="step 2: singular") as caught:
        mg.parallel_map(solve, [1, 2, 3])
    assert type(caught.value) is Diverged
    assert caught.value.step == 2
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# ---------------------------------------------------------------------- arrays


def test_an_array_that_is_changed_in_place_is_an_error(engine: mg.Engine) -> None:
    array, things = np.zeros(3), np.array([None, 1], object)

    def adds(x: Any) -> Any:
        x += 1
        return x

    def writes(k: int) -> Any:
        array[k] = 1

    def writes_things(k: int) -> Any:
        things[0] = k

    with pytest.raises(RuntimeError, match=r"line \d+ of .*test_users_code.py.*\.copy\(\)"):
        mg.parallel_map(adds, [array])
    with pytest.raises(RuntimeError, match=r"in place"):
        mg.parallel_map(writes, [0])
    with pytest.raises(RuntimeError, match=r"`things\[0\]`.*lost"):
        mg.parallel_map(writes_things, [0])
    assert not array.any()
    assert things[0] is None


def test_arrays_come_back_as_they_are_and_may_be_changed(engine: mg.Engine) -> None:
    record = np.zeros(2, dtype=[("a", "f8"), ("b", "i4")])
    arrays = [
        np.arange(3),
        np.arange(6).reshape(2, 3).T,
        np.arange(10)[::2],
        np.array(["a", "b"]),
        np.array([None, 1], object),
        record,
        np.array(3.0),
        np.zeros((0, 3)),
        np.array(["2020"], "M8[D]"),
        np.ma.array([1, 2], mask=[False, True]),
    ]
    for array, back in zip(arrays, mg.parallel_map(lambda one: one, arrays), strict=True):
        assert type(back) is type(array)
        assert (back.dtype, repr(back)) == (array.dtype, repr(array))
        assert back.flags.writeable
        assert not np.shares_memory(array, back)


def test_a_result_longer_than_a_message(engine: mg.Engine) -> None:
    numbers = [3, 9_000_000]
    first, second = mg.parallel_map(lambda n: {"array": np.full(n, n), "list": [n] * 7}, numbers)
    assert first["list"] == [3] * 7
    assert second["array"].nbytes == 72_000_000
    assert int(second["array"].sum()) == 9_000_000**2
    (text,) = mg.parallel_map(lambda k: "a" * k, [70_000_000])
    assert len(text) == 70_000_000


class Solver:
    def __init__(self) -> None:
        self.scratch = np.zeros(4)

    def solve(self, k: int) -> float:
        self.scratch[:] = k
        return float(self.scratch.sum())


def test_an_array_that_may_change_is_named(engine: mg.Engine) -> None:
    solver = Solver()
    with pytest.raises(RuntimeError, match="in place"):
        mg.parallel_map(solver.solve, [1, 2])
    assert mg.parallel_map(solver.solve, [1, 2], changes=("scratch",)) == [4.0, 8.0]
    assert not solver.scratch.any()


def test_frames_of_pandas(engine: mg.Engine) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})
    sums = mg.parallel_map(lambda row, frame: frame["a"].sum() * row, [1, 2], shared=(frame,))
    assert sums == [3.0, 6.0]

    def adds_a_column(frame: Any) -> None:
        frame["c"] = 1

    with pytest.raises(RuntimeError, match="lost"):
        mg.parallel_map(adds_a_column, [frame])
    assert list(frame) == ["a", "b"]


# ---------------------------------------------------------------------- what cannot travel


def test_what_cannot_travel_is_named_with_its_item(engine: mg.Engine) -> None:
    class Holder:
        lock = threading.Lock()

    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"\(argument 1 of item 1\)\.a\[0\] \(lock\)"):
        mg.parallel_map(lambda x, y: x, [1, 2], [{}, {"a": [lock]}])
    with pytest.raises(TypeError, match=r"shared\[0\]\.lock \(lock\)"):
        mg.parallel_map(lambda x, y: x, [1], shared=({"lock": lock},))
    with pytest.raises(TypeError, match=r"shared\.lock \(lock\)"):
        mg.parallel_map(lambda x, lock: x, [1], shared={"lock": lock})
    with pytest.raises(TypeError, match=r"class .*Holder\.lock \(lock\)"):
        mg.parallel_map(lambda x: x, [Holder()])

    def outer(x: int) -> Any:
        return (lambda: lock)()

    with pytest.raises(TypeError, match=r"outer\.lock \(lock\)"):
        mg.parallel_map(outer, [1])


def test_an_open_file_does_not_travel(engine: mg.Engine, tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("abc")
    for mode in ("r", "rb", "w+"):
        with path.open(mode) as file:
            files = {"data": [file]}
            with pytest.raises(TypeError, match=r"an open file \('.*data.txt'\).*files\.data\[0\]"):
                mg.parallel_map(lambda k: files["data"][0].read(k), [1])  # noqa: B023


def test_a_result_that_cannot_travel_is_named(engine: mg.Engine) -> None:
    with pytest.raises(TypeError, match=r"the result of .*its result\.a\[1\] \(generator\)"):
        mg.parallel_map(lambda k: {"a": [k, (j for j in range(k))]}, [1])


# ---------------------------------------------------------------------- what would be lost


def test_state_without_a_dictionary_is_compared(engine: mg.Engine) -> None:
    @dataclass(slots=True)
    class Counter:
        count: int = 0

    counter, numbers, last = Counter(), itertools.count(), collections.deque([1])

    def counts(k: int) -> None:
        counter.count += k

    with pytest.raises(RuntimeError, match=r"`counter\.count`.*lost"):
        mg.parallel_map(counts, [1])
    with pytest.raises(RuntimeError, match=r"`numbers.*lost"):
        mg.parallel_map(lambda k: next(numbers), [1])
    with pytest.raises(RuntimeError, match=r"`last.*lost"):
        mg.parallel_map(lambda k: last.append(k), [1])


def test_the_remedy_fits_what_has_changed(engine: mg.Engine) -> None:
    seen: list[int] = []
    with pytest.raises(RuntimeError, match="Return it") as raised:
        mg.parallel_map(lambda k: seen.append(k), [1])
    assert "spawn" not in str(raised.value)


def test_data_that_is_replaced_inside_is_an_error(engine: mg.Engine) -> None:
    w = mg.ones(2, requires_grad=True)

    def replaces(k: int) -> mg.Tensor:
        w.data = mg.zeros(2)
        return w.sum()

    with pytest.raises(RuntimeError, match="in place"):
        mg.parallel_map(replaces, [1])
    assert w.tolist() == [1, 1]


# ---------------------------------------------------------------------- generators of items


def generators(seed: int) -> list[list[Any]]:
    return [
        list(np.random.default_rng(seed).spawn(3)),
        [np.random.RandomState(seed + k) for k in range(3)],
        [random.Random(seed + k) for k in range(3)],
        [mg.Generator().manual_seed(seed + k) for k in range(3)],
    ]


def draws(rng: Any) -> Any:
    if isinstance(rng, mg.Generator):
        return mg.rand(2, generator=rng).tolist()
    return [rng.random() for _ in range(2)]


def test_an_items_generator_goes_on(engine: mg.Engine) -> None:
    for mine, loops in zip(generators(3), generators(3), strict=True):
        for _ in range(2):
            assert mg.parallel_map(draws, mine) == [draws(rng) for rng in loops]
        assert mg.wait(mg.fork(draws, mine[0])) == draws(loops[0])


def test_items_that_share_a_generator_are_an_error(engine: mg.Engine) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(RuntimeError, match=r"items 0 and 2 of draws.*spawn"):
        mg.parallel_map(draws, [rng, np.random.default_rng(1), rng])


def test_generators_of_a_sum(engine: mg.Engine) -> None:
    mine, loops = (np.random.default_rng(0).spawn(5) for _ in range(2))
    total = mg.parallel_map(lambda rng: rng.integers(100), mine, out="sum", chunks=2)
    assert total == sum(rng.integers(100) for rng in loops)
    assert [rng.random() for rng in mine] == [rng.random() for rng in loops]


# ---------------------------------------------------------------------- with the rest of autograd


def sines(x: mg.Tensor, run: Any) -> mg.Tensor:
    """Saves no input: the product of each call is what the sine saves."""
    return mg.stack(run(lambda k: (x * k).sin().sum(), [1.0, 2.0])).sum()


def loop(fn: Any, items: Any) -> list[Any]:
    return [fn(item) for item in items]


def test_second_derivatives_by_inputs_that_are_not_saved(engine: mg.Engine) -> None:
    x = mg.ones(2)
    found, expected = (
        mg.autograd.functional.hessian(functools.partial(sines, run=run), x)
        for run in (mg.parallel_map, loop)
    )
    assert np.allclose(found.numpy(), expected.numpy())
    y = mg.ones(2, requires_grad=True)
    out = sines(y, mg.parallel_map)
    with mg.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="create_graph records it anew"):
        mg.grad(out, y, create_graph=True)


def test_checkpoint_and_hooks_of_saved_tensors(engine: mg.Engine) -> None:
    def inside(run: Any) -> mg.Tensor:
        outs = run(lambda k: checkpoint(lambda y: (y * k).sin().sum(), x, use_reentrant=False), [2])
        return mg.stack(outs).sum()

    def around(run: Any) -> mg.Tensor:
        return checkpoint(lambda y: sines(y, run), x, use_reentrant=False)

    def hooked(run: Any) -> mg.Tensor:
        with saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            return sines(x, run)

    for program in (inside, around, hooked):
        found = []
        for run in (mg.parallel_map, loop):
            x = mg.ones(2, requires_grad=True)
            program(run).backward()
            found.append(bits(x.grad))
        assert found[0] == found[1]


def test_a_module_that_was_made_by_hand(engine: mg.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = types.ModuleType("plugin")
    exec("FACTOR = 3\ndef scale(k): return k * FACTOR", vars(plugin))
    monkeypatch.setitem(sys.modules, "plugin", plugin)
    assert mg.parallel_map(lambda k: plugin.scale(k), [2]) == [6]
    assert mg.parallel_map(plugin.scale, [2]) == [6]


def test_tensors_without_elements(engine: mg.Engine) -> None:
    x = mg.zeros(0, 3, requires_grad=True)
    (out,) = mg.parallel_map(lambda y: y * 2, [x])
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (0, 3)


def test_shared_is_several(engine: mg.Engine) -> None:
    for one in (nn.Linear(1, 1), nn.Sequential(nn.Tanh()), mg.ones(2), "ab"):
        with pytest.raises(TypeError, match=r"write shared=\(x,\)"):
            mg.parallel_map(lambda k, x: k, [1], shared=one)  # type: ignore[arg-type]


class Holding(Exception):
    def __init__(self, code: int, lock: Any) -> None:
        super().__init__(code, lock)
        self.code, self.lock = code, lock


def test_an_error_that_holds_a_lock_keeps_its_class(engine: mg.Engine) -> None:
    def fails(k: int) -> None:
        raise Holding(k, threading.Lock())

    with pytest.raises(Holding, match=r"3.*lock") as raised:
        mg.parallel_map(fails, [3])
    assert raised.value.code == 3


# ---------------------------------------------------------------------- what is known by its name


UserId = typing.NewType("UserId", int)
Rest = typing.ParamSpec("Rest")
Result = typing.TypeVar("Result")


class Missing:
    def __reduce__(self) -> str:
        return "MISSING"


MISSING = Missing()


def wrapped(function: typing.Callable[Rest, Result]) -> typing.Callable[Rest, Result]:
    @functools.wraps(function)
    def call(*args: Rest.args, **kwargs: Rest.kwargs) -> Result:
        return function(*args, **kwargs)

    call.__annotations__ = {"kwargs": Rest, "return": UserId}
    return call


@wrapped
def next_id(k: int) -> UserId:
    return UserId(k + 1)


def test_globals_that_pickle_only_names(engine: mg.Engine) -> None:
    assert mg.parallel_map(next_id, [1]) == [2]
    found = mg.parallel_map(lambda value: (value is MISSING, MISSING), [MISSING, 1])
    assert [is_missing for is_missing, _ in found] == [True, False]
    assert all(back is MISSING for _, back in found)


class Registry:
    count = 0
    table: typing.ClassVar[dict[int, int]] = {}

    def __call__(self, k: int) -> None:
        type(self).count += k


def test_a_changed_class_is_an_error(engine: mg.Engine) -> None:
    Registry.table = {}  # a class is the client's own where a call runs in the client

    def fills(k: int) -> None:
        Registry.table[k] = k

    with pytest.raises(RuntimeError, match=r"`Registry\.count`.*lost"):
        mg.parallel_map(Registry(), [1])
    with pytest.raises(RuntimeError, match=r"`Registry\.table`.*lost"):
        mg.parallel_map(fills, [1])


def test_a_loaded_library_does_not_travel(engine: mg.Engine) -> None:
    library = ctypes.CDLL(None)
    with pytest.raises(TypeError, match=r"a loaded library.*\.library \(CDLL\)"):
        mg.parallel_map(lambda k: library.abs(k), [1])


def test_create_graph_after_data_was_replaced_is_an_error(engine: mg.Engine) -> None:
    """It would record the branch anew on memory that is another now."""
    w = mg.ones(2, requires_grad=True)
    for fn in (lambda k: (w * w * k).sum(), lambda k: (w.sin() * k).sum()):
        (out,) = mg.parallel_map(fn, [2.0])
        w.data = w.data * 2
        with pytest.raises(RuntimeError, match="create_graph records it anew"):
            mg.grad(out, w, create_graph=True)


# ---------------------------------------------------------------------- lazy Modules


def test_a_lazy_module_that_has_not_run_is_named(engine: mg.Engine) -> None:
    def applies(x: mg.Tensor) -> Any:
        return model(x)

    lazy: list[Any] = [nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.LazyConv1d(2, 1)]
    for layer in lazy:
        model = nn.Sequential(nn.Tanh(), layer)
        with pytest.raises(TypeError, match=r"lazy Module.*run the Module once.*\._modules\.1\."):
            mg.parallel_map(applies, [mg.ones(2, 4)])
        with pytest.raises(TypeError, match="lazy Module"):
            mg.fork(model, mg.ones(2, 4))


def test_a_lazy_module_that_has_run(engine: mg.Engine) -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.Tanh())
    model(mg.ones(2, 4))
    (out,) = mg.parallel_map(model, [mg.ones(2, 4)])
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_lazy_module_that_a_call_makes(engine: mg.Engine) -> None:
    def makes(x: mg.Tensor) -> mg.Tensor:
        return nn.LazyLinear(3)(x)

    x = mg.ones(2, 4, requires_grad=True)
    (out,) = mg.parallel_map(makes, [x])
    out.sum().backward()
    assert x.grad is not None
