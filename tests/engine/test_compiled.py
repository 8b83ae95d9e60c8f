"""A compiled graph gives the bits of the plain loop; what it cannot do, that loop does."""

from __future__ import annotations

import gc
import importlib
import linecache
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.engine import compiled, local, node_rules
from mpgrad.nn import functional
from mpgrad.scheduler.tuning import SAMPLES
from tests.random_programs import random_program

freeze_module = importlib.import_module("mpgrad.autograd.frozen_graphs.freeze")

#: A graph is compiled in the step after this one.
STEPS = local.COMPILED_FROM_USE + 4


@pytest.fixture(autouse=True, params=[node_rules.NODES_MIN, 1], ids=["", "shared"])
def engine(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[mg.Engine]:
    """So many Nodes that are alike share a function."""
    monkeypatch.setattr(node_rules, "NODES_MIN", request.param)
    freeze_module._begin_anew_in_child()  # forgets all graphs
    with mg.Engine("local") as engine:
        yield engine
    freeze_module._begin_anew_in_child()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[compiled.Compiled]:
    """What was run as source, in that order."""
    found: list[compiled.Compiled] = []
    run = compiled.Compiled.run

    def noted(self: compiled.Compiled, *args: Any) -> Any:
        results = run(self, *args)
        if results is not None:
            found.append(self)
        return results

    monkeypatch.setattr(compiled.Compiled, "run", noted)
    return found


def bits(*tensors: Any) -> list[bytes | None]:
    return [None if tensor is None else tensor.detach().numpy().tobytes() for tensor in tensors]


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 1000), marks=[
    pytest.mark.slow, pytest.mark.long])], ids=["60", "1000"])  # fmt: skip
def test_random_graphs(
    seeds: range, ran: list[compiled.Compiled], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "COMPILED_FROM_USE", 1)
    for seed in seeds:
        results = []
        for _ in range(2):
            program = random_program(seed)
            program.loss.backward()
            results.append(bits(*[leaf.grad for leaf in program.leaves]))
        assert results[0] == results[1], seed
    assert len(ran) == len(seeds)


def leaf(*shape: int, dtype: str = "f4", seed: int = 0) -> mg.Tensor:
    values = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return mg.tensor(values, requires_grad=True)


# ---------------------------------------------------------------------- steps of training loops


class _Scale(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, factor: float) -> Any:
        ctx.factor = factor
        return x.numpy() * factor

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad.numpy() * ctx.factor, None


def _digits(step: int) -> list[Any]:
    weights = [leaf(8, 6, seed=1), leaf(6, seed=2), leaf(6, 3, seed=3)]
    x, labels = (
        mg.tensor(np.float32(step) + np.eye(4, 8, dtype="f4")),
        mg.tensor([0, 2, 1, step % 3]),
    )
    hidden = mg.relu(x @ weights[0] + weights[1])
    functional.cross_entropy(hidden @ weights[2], labels).backward()
    return [weight.grad for weight in weights]


def _number_that_changes(step: int) -> list[Any]:
    x = leaf(5)
    ((x * (0.0 if step % 2 else -0.0)) + x**step).sum().backward()
    return [x.grad]


def _number_or_tensor(step: int) -> list[Any]:
    x = leaf(5)
    (x * (2.0 if step % 2 else mg.tensor(3.0))).sum().backward()
    return [x.grad]


def _dim_that_changes(step: int) -> list[Any]:
    x = leaf(4, 4)
    (x.sum(step % 2) * mg.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    return [x.grad]


def _dtype_that_changes(step: int) -> list[Any]:
    x = leaf(5, dtype="f8" if step % 2 else "f4")
    (x * x).sum().backward()
    return [x.grad]


def _complex_numbers(step: int) -> list[Any]:
    x = mg.tensor(np.arange(4) * (1 + step * 1j), requires_grad=True)
    (x * x.exp()).abs().sum().backward()
    return [x.grad]


def _layout_that_changes(step: int) -> list[Any]:
    x, y = leaf(6, 4), leaf(4, 6, seed=1)
    (x * (y.t() if step % 2 else y.detach().t().contiguous())).sum().backward()
    return [x.grad, y.grad]


def _views_and_in_place(step: int) -> list[Any]:
    x = leaf(4, 4)
    y = x * 2
    y[1].mul_(3.0 + step)
    y.t()[2].add_(x[0])
    y.sum().backward()
    return [x.grad]


def _sums_of_many(step: int) -> list[Any]:
    x = leaf(3)
    y = x * 1.5
    (y * y + y.exp() + y + y.sin() + x).sum().backward()
    return [x.grad]


def _several_outputs(step: int) -> list[Any]:
    x = leaf(6, 2)
    first, _, third = x.split(2)
    (first * third).sum().backward()
    return [x.grad]


def _grad_of_inner(step: int) -> list[Any]:
    x = leaf(3)
    y = x * 2
    return list(mg.grad((y * y).sum(), [y, x]))


def _inputs(step: int) -> list[Any]:
    x, z = leaf(3), leaf(3, seed=1)
    y = x * z
    (y * y).sum().backward(inputs=[x])
    return [x.grad, z.grad]


def _twice(step: int) -> list[Any]:
    x = leaf(3)
    loss = (x * x.exp()).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return [x.grad]


def _second_derivative(step: int) -> list[Any]:
    x = leaf(3)
    (first,) = mg.grad((x**3).sum(), x, create_graph=True)
    (second,) = mg.grad((first * x).sum(), x)
    return [first, second]


def _third_derivative_that_is_zero(step: int) -> list[Any]:
    x = leaf(3)
    (first,) = mg.grad(x.sign().sum() + (x * x).sum(), x, create_graph=True)
    (second,) = mg.grad(first.sum(), x, create_graph=True)
    (third,) = mg.grad(second.sum(), x, allow_unused=True)
    return [first, second, third]


def _nothing_runs(step: int) -> list[Any]:
    x, y = leaf(3), leaf(3)
    return list(mg.grad(x.sum(), [y], allow_unused=True))


def _given_gradient(step: int) -> list[Any]:
    x = leaf(3)
    (x * 2).backward(mg.tensor([1.0, float(step), -0.0]))
    return [x.grad]


def _accumulated(step: int) -> list[Any]:
    x = leaf(3)
    for _ in range(3):
        (x * x).sum().backward()
    return [x.grad]


def _function(step: int) -> list[Any]:
    x = leaf(3)
    _Scale.apply(x, float(step)).sum().backward()
    return [x.grad]


class _Sometimes(mg.Function):
    """Two outputs; gives no gradient in every third step, and changes what flows in."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, step: int) -> Any:
        ctx.step = step
        ctx.save_for_backward(x, y)
        ctx.set_materialize_grads(step % 2 == 0)
        return x * y, x + y

    @staticmethod
    def backward(ctx: Any, product: Any, total: Any) -> Any:
        x, y = ctx.saved_tensors
        product, total = [mg.full((3,), 7.0) if g is None else g for g in (product, total)]
        product.mul_(2.0)
        right = product * x + total if ctx.needs_input_grad[1] else None
        return None if ctx.step % 3 == 0 else product * y + total, right, None


def _undefined_gradients(step: int) -> list[Any]:
    x, y = leaf(3), leaf(3, seed=1)
    z = x.exp()
    product, _ = _Sometimes.apply(z, y * 2.0, step)
    u, v = (z * 3.0).sin().split([1, 2])
    (product * product + _Sometimes.apply(z, z, step)[0]).sum().backward(retain_graph=True)
    _Sometimes.apply(mg.cat([u, v]), y.detach(), step)[1].sum().backward()
    return [x.grad, y.grad]


def _derivative_of_a_function(step: int) -> list[Any]:
    x = leaf(3)
    (first,) = mg.grad(_Sometimes.apply(x, x * 2.0, 1)[0].sum(), x, create_graph=True)
    (first * x).sum().backward()
    return [first, x.grad]


class _Twins(mg.Function):
    """Returns one array for two arguments, and keeps what it got."""

    kept: ClassVar[list[Any]] = []

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        return x.numpy() + y.numpy()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        _Twins.kept.append(grad)
        return grad, grad


def _shared_gradients(step: int) -> list[Any]:
    x, y = leaf(3), leaf(3, seed=1)
    _Twins.apply(x, _Twins.apply(x * 2.0, y)).backward(mg.full((3,), float(step)))
    found = [x.grad.clone(), y.grad.clone(), *[kept.clone() for kept in _Twins.kept]]
    x.grad.zero_()
    found += [y.grad, *_Twins.kept]
    _Twins.kept.clear()
    return found


class _Inner(mg.Function):
    """Its backward runs a backward of the same kind, and hooks its own Node."""

    @staticmethod
    def forward(ctx: Any, x: Any, depth: int) -> Any:
        ctx.save_for_backward(x)
        ctx.depth = depth
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        ctx.register_hook(lambda grads, _: (grads[0] * 1.5,))
        if not ctx.depth:
            return grad * 2.0, None
        with mg.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            (inner,) = mg.grad(_Inner.apply(x, ctx.depth - 1).sum(), x)
        return grad * inner, None


def _nested(step: int) -> list[Any]:
    x = leaf(3)
    _Inner.apply(x, 2).sum().backward()
    return [x.grad]


#: May be run as source, from some step on.
def _profiled(step: int) -> list[Any]:
    x = leaf(3)
    with mg.profiler.profile():
        (x * x).sum().backward()
    return [x.grad]


COMPILED = [
    _digits, _number_that_changes, _number_or_tensor, _dim_that_changes, _dtype_that_changes,
    _complex_numbers, _layout_that_changes, _views_and_in_place, _sums_of_many, _several_outputs,
    _grad_of_inner, _inputs, _twice, _second_derivative, _third_derivative_that_is_zero,
    _given_gradient, _accumulated, _profiled, _function, _undefined_gradients,
    _derivative_of_a_function, _shared_gradients, _nested,
]  # fmt: skip


def _hook(step: int) -> list[Any]:
    x = leaf(3)
    y = x * 2
    y.register_hook(lambda grad: grad * step)
    (y * x).sum().backward()
    return [x.grad]


def _retained(step: int) -> list[Any]:
    x = leaf(3)
    y = x * step
    y.retain_grad()
    (y * y).sum().backward()
    return [x.grad, y.grad]


def _checkpoint(step: int) -> list[Any]:
    x = leaf(3)
    checkpoint = mg.utils.checkpoint.checkpoint
    checkpoint(lambda a: a.exp() * step, x, use_reentrant=False).sum().backward()
    return [x.grad]


def _packed(step: int) -> list[Any]:
    x = leaf(3)
    with mg.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(), mg.tensor):
        y = (x * x).sum()
    y.backward()
    return [x.grad]


def _anomaly(step: int) -> list[Any]:
    x = leaf(3)
    with mg.autograd.set_detect_anomaly(True):
        (x * x).sum().backward()
    return [x.grad]


#: Run by the plain loop, always.
PLAIN = [_nothing_runs, _hook, _retained, _checkpoint, _packed, _anomaly]


@pytest.mark.parametrize("step", [*COMPILED, *PLAIN], ids=lambda step: step.__name__)
def test_steps_of_a_loop(
    step: Callable[[int], list[Any]],
    ran: list[compiled.Compiled],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = range(1, 2 * STEPS + SAMPLES)
    found = [bits(*step(number)) for number in steps]
    assert bool(ran) == (step in COMPILED)
    monkeypatch.setattr(local, "_run_compiled", lambda *_: None)
    assert found == [bits(*step(number)) for number in steps]


# ---------------------------------------------------------------------- what goes wrong


def _after_some_steps(record: Callable[[], mg.Tensor]) -> mg.Tensor:
    """What ``record`` gives, its graph compiled by now."""
    for _ in range(STEPS):
        record().backward()
    return record()


def test_a_graph_that_was_used_up_says_so(ran: list[compiled.Compiled]) -> None:
    x = leaf(3)
    loss = _after_some_steps(lambda: (x * x).sum())
    loss.backward()
    with pytest.raises(RuntimeError, match="second time") as caught:
        loss.backward()
    assert ran
    assert "in the backward graph at MulBackward0(float32[3]) -> (float32[3], float32[3])" in str(
        caught.value.__notes__
    )
    shown = "".join(traceback.format_tb(caught.tb))
    assert "if saved is None: n" in shown


def test_a_saved_tensor_that_was_changed_says_so() -> None:
    x = leaf(3)

    def record() -> mg.Tensor:
        nonlocal y
        y = x * 1.0
        return (y * y).sum()

    y = x
    loss = _after_some_steps(record)
    y.add_(1.0)
    before = bits(x.grad)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert bits(x.grad) == before


def test_an_error_of_user_code_names_its_node(ran: list[compiled.Compiled]) -> None:
    class Broken(mg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, fails: bool) -> Any:
            ctx.fails = fails
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            if ctx.fails:
                raise LookupError("the user's own")
            return grad, None

    x = leaf(3)
    _after_some_steps(lambda: Broken.apply(x * 2.0, False).sum()).backward()
    before, count = bits(x.grad), len(ran)
    loss = Broken.apply(x * 2.0, True).sum()
    with pytest.raises(LookupError, match="own") as caught:
        loss.backward()
    first, second = caught.value.__notes__
    assert first == "in the backward graph at BrokenBackward(float32[3]) -> (float32[3], -)"
    assert re.fullmatch(r"its forward: .*Broken\.apply\(\) at test_compiled\.py:\d+", second)
    assert bits(x.grad) == before
    assert count
    assert "found = run_user_code(n1" in "".join(traceback.format_tb(caught.tb))


def test_a_function_may_change_a_gradient_that_nobody_else_has(
    ran: list[compiled.Compiled],
) -> None:
    addresses: list[tuple[Any, Any]] = []

    class InPlace(mg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            before = grad.data_ptr()
            grad.mul_(2.0)
            addresses.append((before, grad.data_ptr()))
            return grad

    x = leaf(3)
    _after_some_steps(lambda: InPlace.apply(x * 2.0).exp().sum()).backward()
    assert ran
    assert [before == after for before, after in addresses] == [True] * (STEPS + 1)


def test_several_threads_run_one_program(ran: list[compiled.Compiled]) -> None:
    expected = [bits(*_digits(step)) for step in range(1, 30)]
    found: list[Any] = []

    def work() -> None:
        with mg.Engine("local"):
            found.append([bits(*_digits(step)) for step in range(1, 30)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4
    assert ran


def test_gradients_are_the_callers_own() -> None:
    x, y = leaf(3), leaf(3, seed=1)
    for _ in range(STEPS):
        x.grad = y.grad = None
        (x + y).backward(mg.ones(3))
    x.grad.zero_()
    assert y.grad.tolist() == [1.0, 1.0, 1.0]


def test_too_large_a_graph_is_not_compiled(
    ran: list[compiled.Compiled], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "NODES_MAX", 3)
    x = leaf(3)
    _after_some_steps(lambda: (x * x).sin().sum()).backward()
    assert not ran


# ---------------------------------------------------------------------- what is kept and shown


def test_explain_shows_the_source(engine: mg.Engine) -> None:
    x = leaf(3)
    found = engine.explain((x * 2.0).exp().sum(), source=True)
    assert ".saved  # raises" in str(found)
    assert "= saved['result'].array(n" in str(found)
    assert "= multiply(" in str(found)
    assert engine.explain((x * 2.0).exp().sum()).source is None
    found = engine.explain(_Scale.apply(x, 2.0).sum(), source=True)
    assert "found = run_user_code(n1, xp, grads, (True, False))" in str(found)


def test_explain_says_why_there_is_none(engine: mg.Engine) -> None:
    x = leaf(3)
    y = x * 2.0
    y.register_hook(lambda grad: None)
    assert "hooks" in str(engine.explain(y.sum(), source=True).source)


def test_what_was_compiled_first_is_dropped_first(
    engine: mg.Engine, ran: list[compiled.Compiled], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "kept", compiled.Kept())
    monkeypatch.setattr(compiled, "KEPT_NODES_MAX", 7)
    x = leaf(2, 3, 4, 5)
    for record in (lambda: x.sin().sum(), lambda: x.cos().sum(), lambda: x.tan().sum()):
        _after_some_steps(record)
    statistics = engine.statistics()
    assert (statistics.compiled_graphs, statistics.compiled_nodes) == (2, 6)
    before = len(ran)
    _after_some_steps(lambda: x.sin().sum())  # compiled anew
    assert len(ran) > before


def test_the_lines_of_a_graph_go_with_it() -> None:
    def kept() -> list[str]:
        return [file for file in linecache.cache if file.startswith("<backward ")]

    x = leaf(3)
    _after_some_steps(lambda: (x * x).sum())
    assert kept()
    freeze_module._begin_anew_in_child()  # forgets all graphs
    gc.collect()
    assert kept() == []


def test_another_kind_of_operand_runs_right() -> None:
    """The tables of a graph do not say whether an operand without gradient was a tensor."""
    tensor, scalar = mg.full((3,), 3.0), mg.tensor(4.0)
    with mg.Engine("local"):
        for factor, expected in [(tensor, 3.0)] * 6 + [(2.0, 2.0), (scalar, 4.0), (tensor, 3.0)]:
            x = mg.ones(3, requires_grad=True)
            (x * factor).sum().backward()
            assert x.grad is not None
            assert x.grad.tolist() == [expected] * 3


def test_nodes_that_save_different_shapes_share_no_function(ran: list[compiled.Compiled]) -> None:
    row, number = mg.tensor([1.0, 2.0, 3.0]), mg.tensor(2.0)
    for _ in range(STEPS):
        x = leaf(3)
        (x * row + x * number + x * row).sum().backward()
        assert x.grad.tolist() == [4.0, 6.0, 8.0]
    assert ran


def test_not_more_functions_are_kept_than_allowed(
    monkeypatch: pytest.MonkeyPatch, ran: list[compiled.Compiled]
) -> None:
    monkeypatch.setattr(node_rules, "_shared", {})
    monkeypatch.setattr(node_rules, "SIGNATURES_MAX", 4)
    for length in range(2, 12):
        for _ in range(STEPS):
            x = leaf(length)
            (x.exp() * x).sum().backward()
            assert len(node_rules._shared) <= 4
    assert ran
    assert bool(node_rules._shared) == (node_rules.NODES_MIN == 1)


def test_many_results_of_a_node_are_checked_in_a_loop(ran: list[compiled.Compiled]) -> None:
    for _ in range(STEPS):
        leaves = [leaf(3) for _ in range(20)]
        mg.stack([one * 2.0 for one in leaves]).sum().backward()
        assert [one.grad.tolist() for one in leaves] == [[2.0] * 3] * 20
    assert ran
    assert "checked('StackBackward0'" in ran[-1].source


@pytest.mark.parametrize("copies", [1, 400])
def test_a_formula_that_gives_no_gradient_gives_none(copies: int) -> None:
    """PyTorch's norm of order 0 has none. 400: each form of Node has a source of its own."""
    for _ in range(STEPS):
        x, y = leaf(3, 2), mg.ones(3, requires_grad=True)
        counts = [mg.linalg.vector_norm(x * (k + 1), 0, -1) * y for k in range(copies)]
        mg.stack(counts).sum().backward()
        assert x.grad is None
        assert y.grad is not None
        assert y.grad.tolist() == [2.0 * copies] * 3
