"""An unchanged program whose custom Functions are differentiated in workers."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.autograd.function import once_differentiable  # noqa: E402

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.torch]


@pytest.fixture(scope="module", params=["local", "process-1", "process-2", "process-4"])
def engine(request: pytest.FixtureRequest) -> Iterator[mg.Engine]:
    mode, _, workers = request.param.partition("-")
    with mg.Engine(mode, cpu_workers=int(workers or 2)) as engine:
        yield engine


class Pids(list):  # type: ignore[type-arg]
    """Where backwards ran."""


def scaled(parallel: bool, **options: Any) -> Any:
    """A new class each time: one for plain torch, and one that is parallelized."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any, k: float) -> Any:
            ctx.save_for_backward(x, w)
            ctx.k = k
            return x * w * k, (x > 0).sum()

        @staticmethod
        def backward(ctx: Any, grad: Any, _: Any) -> Any:
            x, w = ctx.saved_tensors
            return grad * w * ctx.k, grad * x * ctx.k if ctx.needs_input_grad[1] else None, None

    if parallel:
        mt.parallelize(Scaled)
    return Scaled


def values(*tensors: Any) -> list[Any]:
    return [None if one is None else one.detach().tolist() for one in tensors]


def leaves(count: int) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(5, generator=generator).requires_grad_() for _ in range(count)]


def test_a_program_with_hooks_and_a_shared_parameter(engine: mg.Engine) -> None:
    found = []
    for parallel in (False, True):
        cls, (w, *xs) = scaled(parallel), leaves(5)
        w.register_hook(lambda grad: grad * 2)
        loss, middle, kept = 0, [], []
        for k, x in enumerate(xs):
            out, count = cls.apply(x, w, k + 1.0)
            out.register_hook(lambda grad: grad * 3)
            out.retain_grad()
            middle.append(out)
            kept.append(int(count))
            loss = loss + out.square().sum()
        loss.backward()
        found.append(values(loss, w.grad, *[x.grad for x in xs], *[m.grad for m in middle]))
        found[-1].append(kept)
    assert found[0] == found[1]


def test_a_chain_and_a_constant_argument(engine: mg.Engine) -> None:
    found = []
    for parallel in (False, True):
        cls, (w, x) = scaled(parallel), leaves(2)
        out = x
        for k in range(3):
            out, _ = cls.apply(out, w.detach(), k + 1.0)
        (gradient,) = torch.autograd.grad(out.sum(), x)
        found.append(values(out, gradient))
    assert found[0] == found[1]


def test_retain_graph_and_a_second_backward(engine: mg.Engine) -> None:
    cls, (w, x) = scaled(True), leaves(2)
    out, _ = cls.apply(x, w, 2.0)
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    assert torch.allclose(x.grad, 4 * w)
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


def test_a_saved_tensor_that_changes_is_torchs_error(engine: mg.Engine) -> None:
    cls, (w, x) = scaled(True), leaves(2)
    out, _ = cls.apply(x, w, 2.0)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_create_graph_runs_as_before(engine: mg.Engine) -> None:
    cls, (w, x) = scaled(True), leaves(2)
    out, _ = cls.apply(x, w, 2.0)
    (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    second, of_w = torch.autograd.grad(first.sum(), [x, w])
    assert torch.allclose(second, 8 * w * w)
    assert torch.allclose(of_w, 16 * x * w)


def test_functions_that_need_torchs_own_node(engine: mg.Engine) -> None:
    class InPlace(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    mt.parallelize(InPlace)
    (x,) = leaves(1)
    y = x * 1
    out = InPlace.apply(y)
    assert out is y
    out.sum().backward()
    assert torch.equal(x.grad, torch.full((5,), 2.0))


def test_setup_context_and_once_differentiable(engine: mg.Engine) -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x * x

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, grad: Any) -> Any:
            return 2 * grad * ctx.saved_tensors[0]

    mt.parallelize(Square)
    (x,) = leaves(1)
    Square.apply(x).sum().backward()
    assert torch.equal(x.grad, 2 * x)
    loss = Square.apply(x).square().sum()
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_torch_func_passes_through(engine: mg.Engine) -> None:
    class Cube(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Any) -> Any:
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return 3 * grad * ctx.saved_tensors[0] ** 2

    mt.parallelize(Cube)
    x = torch.tensor([1.0, 2.0])
    found = torch.func.vmap(torch.func.grad(lambda y: Cube.apply(y)))(x)
    assert found.tolist() == [3.0, 12.0]


def test_an_error_in_backward_and_a_ctx_that_cannot_travel(engine: mg.Engine) -> None:
    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, lock: Any) -> Any:
            ctx.lock = lock
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            if ctx.lock is None:
                raise KeyError("ours")
            return grad * 2, None

    mt.parallelize(Odd)
    (x,) = leaves(1)
    with pytest.raises(KeyError, match="ours"):
        Odd.apply(x, None).sum().backward()
    assert x.grad is None
    Odd.apply(x, threading.Lock()).sum().backward()
    assert torch.equal(x.grad, torch.full((5,), 2.0))


class Meets(torch.autograd.Function):
    """Its backward waits until that of another call has begun."""

    @staticmethod
    def forward(ctx: Any, x: Any, mine: str, other: str) -> Any:
        ctx.files = mine, other
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        mine, other = ctx.files
        open(mine, "w").close()
        while not os.path.exists(other):
            os.sched_yield()
        return grad, None, None


def test_calls_one_after_another_are_differentiated_at_once(tmp_path: Path) -> None:
    mt.parallelize(Meets)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    (x,) = leaves(1)
    with mg.Engine("process", cpu_workers=2):
        loss = Meets.apply(x, a, b).sum()
        loss = loss + Meets.apply(x, b, a).sum()
        loss.backward()
    assert torch.equal(x.grad, torch.full((5,), 2.0))


class Dies(torch.autograd.Function):
    """Its first backward ends its process."""

    @staticmethod
    def forward(ctx: Any, x: Any, path: str) -> Any:
        ctx.save_for_backward(x)
        ctx.path = path
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if not os.path.exists(ctx.path):
            open(ctx.path, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * grad * ctx.saved_tensors[0], None


def test_a_worker_dies_in_a_backward(tmp_path: Path) -> None:
    mt.parallelize(Dies)
    (x,) = leaves(1)
    with mg.Engine("process", cpu_workers=2):
        Dies.apply(x, str(tmp_path / "died")).sum().backward()
    assert torch.equal(x.grad, 2 * x)


def test_only_functions_can_be_parallelized() -> None:
    with pytest.raises(TypeError, match=r"autograd\.Function"):
        mt.parallelize(torch.nn.Linear)  # type: ignore[arg-type]


def test_the_programs_random_numbers_stay_as_they_are(engine: mg.Engine) -> None:
    """Nothing is drawn for a backward; one that draws has numbers of its own."""
    found = []
    for parallel in (False, True):
        cls, (w, x) = scaled(parallel), leaves(2)
        torch.manual_seed(7)
        np.random.seed(7)
        random.seed(7)
        cls.apply(x, w, 2.0)[0].sum().backward()
        found.append([torch.rand(2).tolist(), np.random.rand(), random.random()])
    assert found[0] == found[1]


class Draws(torch.autograd.Function):
    """Its gradient is a random number."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.rand_like(grad)


def test_a_backward_that_draws(engine: mg.Engine) -> None:
    if not engine.worker_pids():
        return  # it is torch's own
    mt.parallelize(Draws)

    def run() -> list[Any]:
        torch.manual_seed(3)
        xs = leaves(2)
        sum(Draws.apply(x).sum() for x in xs).backward()
        return values(*[x.grad for x in xs])

    first = run()
    assert first == run()
    assert first[0] != first[1]


class Vjp(torch.autograd.Function):
    """torch's other name for a backward."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def vjp(ctx: Any, grad: Any) -> Any:
        return 2 * grad * ctx.saved_tensors[0]


def test_a_backward_that_is_called_vjp(engine: mg.Engine) -> None:
    mt.parallelize(Vjp)
    (x,) = leaves(1)
    Vjp.apply(x).sum().backward()
    assert torch.equal(x.grad, 2 * x)


class Factor(torch.autograd.Function):
    """Its backward reads an attribute of its class."""

    factor = 1.0
    table: list[float] = [1.0]  # noqa: RUF012

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * Factor.factor * Factor.table[0]


def test_a_class_that_changes_between_calls(engine: mg.Engine) -> None:
    """Also in a hook, between two calls of one backward."""
    mt.parallelize(Factor)
    found = []
    for value in (1.0, 5.0):
        Factor.factor, Factor.table[0] = value, value + 1
        (x,) = leaves(1)
        Factor.apply(x).sum().backward()
        found.append(x.grad[0].item())
    assert found == [2.0, 30.0]

    def hook(grad: Any) -> None:
        Factor.table[0] = 10.0

    (x,) = leaves(1)
    Factor.factor, Factor.table[0] = 1.0, 1.0
    middle = Factor.apply(x)
    middle.register_hook(hook)
    Factor.apply(middle).sum().backward()
    assert x.grad[0].item() == 10.0


class Twice(torch.autograd.Function):
    """Its gradients share memory."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        return x + y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        own = grad * 1
        return own, own.detach()


def test_gradients_that_share_memory(engine: mg.Engine) -> None:
    mt.parallelize(Twice)
    x, y = leaves(2)
    first, second = torch.autograd.grad(Twice.apply(x, y).sum(), [x, y])
    assert type(first) is type(second) is torch.Tensor
    first.add_(1)


class Interrupts(torch.autograd.Function):
    """Its first backward in a worker interrupts the program, and never ends."""

    @staticmethod
    def forward(ctx: Any, x: Any, path: str, client: int) -> Any:
        ctx.told = path, client
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        path, client = ctx.told
        if os.getpid() != client and not os.path.exists(path):
            open(path, "w").close()
            os.kill(client, signal.SIGINT)
            while True:
                signal.pause()
        return grad * 2, None, None


def test_ctrl_c(tmp_path: Path) -> None:
    mt.parallelize(Interrupts)
    told, xs = (str(tmp_path / "told"), os.getpid()), leaves(3)
    with mg.Engine("process", cpu_workers=1):
        with pytest.raises(KeyboardInterrupt):
            sum(Interrupts.apply(x, *told).sum() for x in xs).backward()
        sum(Interrupts.apply(x, *told).sum() for x in xs).backward()
    for x in xs:
        assert torch.equal(x.grad, torch.full((5,), 2.0))


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        raise ValueError("no gradient")


def test_one_error_is_told_once() -> None:
    mt.parallelize(Fails)
    with warnings.catch_warnings(record=True) as shown, mg.Engine("process", cpu_workers=1):
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="no gradient"):
            sum(Fails.apply(x).sum() for x in leaves(3)).backward()
        # Behind the calls that were given up: their answers have come.
        assert mt.wait(mt.fork(abs, -1)) == 1
        gc.collect()
    assert [one for one in shown if issubclass(one.category, RuntimeWarning)] == []


@pytest.mark.parametrize("count", [1, 3, 4])
def test_another_number_of_gradients_is_torchs_error(engine: mg.Engine, count: int) -> None:
    class Gives(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            return x * y

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return (grad, grad, grad, None)[:count]

    mt.parallelize(Gives)
    x = torch.ones(2, requires_grad=True)
    out = Gives.apply(x, x).sum()
    got = rf"function GivesBackward .* incorrect number of gradients \(expected 2, got {count}\)"
    with pytest.raises(RuntimeError, match=got):
        out.backward()


def summed_with_what_came_before(parallel: bool) -> Any:
    """A gradient with contributions of plain torch, of a map, and of a Function behind both."""
    function = scaled(parallel)
    x = torch.linspace(-1.0, 1.0, 9, dtype=torch.float64).reshape(3, 3).requires_grad_()
    plain = torch.sin(x) + x * x
    (mapped,) = mt.parallel_map(torch.tanh, [x])
    behind = [function.apply(x, x, 0.1 * k)[0] for k in range(1, 4)]
    loss = sum([(one * one).sum() for one in [plain, mapped, *behind]])
    (first,) = torch.autograd.grad(loss, [x], create_graph=True)
    ((first * first).sum() + loss).backward()
    return values(first, x.grad)


def test_sums_are_taken_in_the_same_order_in_each_mode(engine: mg.Engine) -> None:
    """It was so: in `local` a Function gave its gradient earlier than with workers."""
    found = summed_with_what_came_before(parallel=True)
    with mg.Engine("local"):
        assert summed_with_what_came_before(parallel=True) == found
    for one, wanted in zip(found, summed_with_what_came_before(parallel=False), strict=True):
        assert np.allclose(one, wanted, rtol=1e-13)
