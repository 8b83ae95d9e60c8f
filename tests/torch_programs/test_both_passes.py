"""mpgrad.torch beside plain torch with one thread: what a program of torch may do with branches."""

from __future__ import annotations

import gc
import os
import signal
import threading
import warnings
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402
from mpgrad.calls.kept_branches import BRANCHES  # noqa: E402
from mpgrad.calls.map_time import MapTime  # noqa: E402
from mpgrad.parallel import placing  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.torch]


@pytest.fixture(autouse=True)
def every_test_is_watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a function changes is compared in its first calls only; torch has one thread."""
    monkeypatch.setattr(placing, "RUNS", placing.Runs())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=["local", "process-1", "process-2", "process-4"])
def engine(request: pytest.FixtureRequest) -> Iterator[mg.Engine]:
    mode, _, workers = request.param.partition("-")
    with mg.Engine(mode, cpu_workers=int(workers or 2)) as engine:
        yield engine


def serial(fn: Callable[..., Any], *iterables: Any, shared: Any = ()) -> list[Any]:
    return [fn(*item, *shared) for item in zip(*iterables, strict=True)]


def leaves(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def bits(*tensors: Any) -> list[Any]:
    return [
        None if one is None else one.detach().contiguous().view(-1).view(torch.uint8).tolist()
        for one in tensors
    ]


def same_in_both(program: Callable[[Callable[..., Any]], list[Any]]) -> None:
    """The program gives the same with the loop and with parallel_map."""
    assert program(serial) == program(mt.parallel_map)


def net(seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1, **options)
    )


# ---------------------------------------------------------------------- gradients


def test_a_module_as_argument(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        model, xs = net(), leaves(0, *[(5, 4)] * 4)
        outs = run(lambda x, model: model(x).sum(), xs, shared=(model,))
        torch.stack(outs).sum().backward()
        return bits(*outs, *[p.grad for p in model.parameters()], *[x.grad for x in xs])

    same_in_both(program)


def test_a_module_in_a_closure(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        model, xs = net(), leaves(1, *[(5, 4)] * 3)
        loss = torch.stack(run(lambda x: model(x).square().mean(), xs)).sum()
        loss.backward()
        return bits(loss, *[p.grad for p in model.parameters()])

    same_in_both(program)


def test_tied_weights_stay_tied(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
        with torch.no_grad():
            model[0].weight.copy_(torch.eye(4) * 0.5)
            model[0].bias.zero_()
            model[2].bias.zero_()
        model[2].weight = model[0].weight
        (out,) = run(lambda x: model(x).sum(), leaves(2, (3, 4)))
        out.backward()
        return [*bits(*[p.grad for p in model.parameters()]), len(list(model.parameters()))]

    same_in_both(program)


def test_adam_for_twenty_steps(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        model, xs = net(), leaves(3, *[(5, 4)] * 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = torch.stack(run(lambda x: model(x).square().mean(), xs)).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return bits(*losses, *model.parameters())

    same_in_both(program)


def test_one_branch_is_differentiated_alone(engine: mg.Engine) -> None:
    xs = leaves(4, (3,), (3,))
    outs = mt.parallel_map(lambda x: x.exp().sum(), xs)
    (alone,) = torch.autograd.grad(outs[1], xs[1])
    assert bits(alone) == bits(xs[1].exp())
    assert torch.autograd.grad(outs[0], xs[1], allow_unused=True) == (None,)


def test_gradients_have_memory_of_their_own(engine: mg.Engine) -> None:
    """Those of a sum are one tensor, which is also what backward() was given."""
    a, b = leaves(36, (3,), (3,))
    (out,) = mt.parallel_map(lambda x, y: x + y, [a], [b])
    given = torch.ones(3)
    out.backward(given)
    a.grad.zero_()
    assert bits(b.grad, given) == bits(torch.ones(3), torch.ones(3))


def test_maps_in_a_chain(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        w, *xs = leaves(5, (4, 4), *[(4,)] * 3)
        middle = run(lambda x: (w @ x).tanh(), xs)
        outs = run(lambda x, y: (w @ (x * y)).sum(), middle, xs)
        total = sum(outs)
        total.backward()
        return bits(w.grad, *[x.grad for x in xs])

    same_in_both(program)


def test_an_argument_that_is_detached_inside_is_no_source(engine: mg.Engine) -> None:
    """The graph behind it is not run, and can still be differentiated: a GAN's step."""

    def program(run: Callable[..., Any]) -> list[Any]:
        w, v, *xs = leaves(21, (3,), (3,), (3,), (3,))
        fakes = run(lambda x: x * w.sin(), xs)
        sum(run(lambda fake: (fake.detach() * v).sum(), fakes)).backward()
        assert w.grad is None
        sum(run(lambda fake: (fake * v).sum(), fakes)).backward()
        return bits(w.grad, v.grad)

    same_in_both(program)


def test_a_sum(engine: mg.Engine) -> None:
    w, *xs = leaves(6, (4, 4), *[(4,)] * 5)
    total, count = mt.parallel_map(lambda x: ((w @ x).sin().sum(), 1), xs, out="sum", chunks=2)
    assert count == 5
    total.backward()
    gradient, w.grad = w.grad, None
    sum((w @ x).sin().sum() for x in xs).backward()
    assert torch.allclose(gradient, w.grad)


def test_gradients_only_of_what_is_asked(engine: mg.Engine) -> None:
    x, w = leaves(7, (3,), (3,))
    a, b = mt.parallel_map(lambda y: (y * w, (y + w).sum()), [x])[0]
    assert bits(*torch.autograd.grad(a.sum(), [x, w], retain_graph=True)) == bits(w, x)
    assert bits(torch.autograd.grad(b, [x])[0]) == bits(torch.ones(3))


# ---------------------------------------------------------------------- modes and repeated passes


def test_no_grad_and_inference_mode(engine: mg.Engine) -> None:
    x, w = leaves(8, (3,), (3,))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            (out,) = mt.parallel_map(lambda y: (y * w, torch.is_inference_mode_enabled()), [x])
        assert not out[0].requires_grad
        assert out[1] is (mode is torch.inference_mode)


def test_retain_graph_and_a_second_backward(engine: mg.Engine) -> None:
    x, w = leaves(9, (3,), (3,))
    (out,) = mt.parallel_map(lambda y: (y * w).sum(), [x])
    out.backward(retain_graph=True)
    out.backward()
    assert bits(x.grad) == bits(w * 2)
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_a_saved_argument_that_changes_is_torchs_error(engine: mg.Engine) -> None:
    x, w = leaves(10, (3,), (3,))
    (out,) = mt.parallel_map(lambda y: (y * w).sum(), [x])
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_another_argument_may_change(engine: mg.Engine) -> None:
    x, bias = leaves(11, (30_000,), (30_000,))
    (out,) = mt.parallel_map(lambda y: (y.sin() + bias).sum(), [x])
    with torch.no_grad():
        bias.add_(1)
    out.backward()
    assert bits(x.grad, bias.grad) == bits(x.cos(), torch.ones(30_000))


def test_derivatives_of_any_order(engine: mg.Engine) -> None:
    x, w = leaves(12, (3,), (3,))
    (out,) = mt.parallel_map(lambda y: (y**3 * w).sum(), [x])
    (first,) = torch.autograd.grad(out, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    third, of_w = torch.autograd.grad(second.sum(), [x, w])
    assert torch.allclose(second, 6 * x * w)
    assert torch.allclose(third, 6 * w)
    assert torch.allclose(of_w, 6 * x)


def test_gradgradcheck(engine: mg.Engine) -> None:
    x = torch.tensor([0.3, -0.7], dtype=torch.float64, requires_grad=True)

    def f(y: Any) -> Any:
        return mt.parallel_map(lambda a: a.sin() * a.exp(), [y])[0]

    assert torch.autograd.gradcheck(f, (x,))
    assert torch.autograd.gradgradcheck(f, (x,))


def test_what_torch_keeps_around_a_call_travels(engine: mg.Engine) -> None:
    def seen(x: Any) -> Any:
        return (
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            torch.is_autocast_enabled("cpu"),
            torch.get_deterministic_debug_mode(),
            torch.is_anomaly_enabled(),
            torch.get_num_threads(),
            (x @ x).dtype,
        )

    x = torch.eye(3)
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("high")
    torch.use_deterministic_algorithms(True)
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.autograd.set_detect_anomaly(True):
            expected = seen(x)
            assert mt.parallel_map(seen, [x]) == [expected]
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(False)
    assert mt.parallel_map(seen, [x]) == [seen(x)]


def test_a_step_under_autocast(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        model, xs = net(), leaves(13, *[(5, 4)] * 2)
        # Without the cache, in which plain torch adds the gradients of all items in bfloat16.
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            loss = torch.stack(run(lambda x: model(x).float().sum(), xs)).sum()
        loss.backward()
        return bits(loss, *[p.grad for p in model.parameters()])

    same_in_both(program)


# ---------------------------------------------------------------------- random numbers, buffers


def test_random_numbers(engine: mg.Engine) -> None:
    def run() -> list[Any]:
        torch.manual_seed(3)
        found = [one.tolist() for one in mt.parallel_map(lambda k: torch.rand(2) * k, [1, 1, 1])]
        return [*found, torch.rand(1).tolist()]

    with mg.Engine("local"):
        expected = run()
    assert run() == expected
    assert len({str(one) for one in expected}) == 4


def test_dropout_is_the_same_when_a_branch_is_made_again(engine: mg.Engine) -> None:
    (x,) = leaves(14, (100,))
    (out,) = mt.parallel_map(lambda y: torch.nn.functional.dropout(y * y, 0.5).sum(), [x])
    out.backward(retain_graph=True)
    first, x.grad = x.grad, None
    BRANCHES.clear()
    out.backward()
    assert bits(first) == bits(x.grad)


def test_batch_norm_of_one_item(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        model = torch.nn.Sequential(net(), torch.nn.BatchNorm1d(1))
        (first,) = run(lambda x: model(x).square().sum(), leaves(15, (6, 4)))
        (second,) = run(lambda x: model(x).square().sum(), leaves(16, (6, 4)))
        (first + second).backward()
        return bits(*model.buffers(), *[p.grad for p in model.parameters()])

    same_in_both(program)


def test_two_items_that_change_one_buffer(engine: mg.Engine) -> None:
    model = torch.nn.BatchNorm1d(4)
    with pytest.raises(RuntimeError, match="same buffer"):
        mt.parallel_map(model, leaves(17, (6, 4), (6, 4)))


def test_data_parallel(engine: mg.Engine) -> None:
    model = torch.nn.Sequential(net(), torch.nn.BatchNorm1d(1))
    plain = torch.nn.Sequential(net(), torch.nn.BatchNorm1d(1))
    parallel = mt.DataParallel(model, parts=2)
    assert list(parallel.state_dict()) == list(torch.nn.DataParallel(plain).state_dict())
    (x,) = leaves(18, (8, 4))
    out = parallel(x)
    expected = [plain(part) for part in x.chunk(2)]
    assert bits(out) == bits(torch.cat(expected))
    out.square().sum().backward()
    torch.cat(expected).square().sum().backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-5)
    after_part_0 = torch.nn.Sequential(net(), torch.nn.BatchNorm1d(1))
    after_part_0(x[:4])
    assert bits(*model.buffers()) == bits(*after_part_0.buffers())


# ---------------------------------------------------------------------- hooks and errors


def test_hooks_run_once_in_the_client(engine: mg.Engine) -> None:
    seen: list[int] = []
    x, w = leaves(19, (3,), (3,))
    w.register_hook(lambda grad: seen.append(1))
    outs = mt.parallel_map(lambda k: (x * w * k).sum(), [1.0, 2.0])
    outs[0].register_hook(lambda grad: grad * 10)
    outs[1].retain_grad()
    torch.stack(outs).sum().backward()
    assert seen == [1]
    assert torch.allclose(x.grad, w * 12)
    assert outs[1].grad is not None


class Ours(Exception):
    pass


class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        raise Ours("backward")


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Any) -> Any:
        return 2 * grad * ctx.saved_tensors[0]


def test_a_function_that_can_be_differentiated_once(engine: mg.Engine) -> None:
    (x,) = leaves(35, (3,))
    (out,) = mt.parallel_map(lambda y: Once.apply(y).sum(), [x])
    out.backward()
    assert bits(x.grad) == bits(2 * x)


def test_an_error_in_forward(engine: mg.Engine) -> None:
    def fails(k: int) -> int:
        if k >= 2:
            raise Ours(k)
        return k

    with pytest.raises(Ours) as raised:
        mt.parallel_map(fails, range(6))
    assert raised.value.args == (2,)
    assert any("item 2" in note for note in raised.value.__notes__)


def test_an_error_in_backward(engine: mg.Engine) -> None:
    (x,) = leaves(20, (3,))
    (out,) = mt.parallel_map(lambda y: Bad.apply(y).sum(), [x])
    with pytest.raises(Ours):
        out.backward()
    assert x.grad is None
    (out,) = mt.parallel_map(lambda y: y.sum(), [x])
    out.backward()
    assert bits(x.grad) == bits(torch.ones(3))


@pytest.mark.parametrize("size", [3, 100_000])
def test_an_argument_changed_in_place_is_an_error(engine: mg.Engine, size: int) -> None:
    plain = torch.zeros(size)
    with pytest.raises(RuntimeError, match="in place"):
        mt.parallel_map(lambda y: y.add_(1), [plain])
    assert not plain.any()


@pytest.mark.parametrize("size", [3, 100_000])
def test_a_write_that_torch_does_not_see(engine: mg.Engine, size: int) -> None:
    def writes(x: Any, y: Any) -> Any:
        y.data[1] = 5
        return x.sum() + y.sum()

    plain = [torch.zeros(size), torch.zeros(size)]
    with pytest.raises(RuntimeError, match="argument 1"):
        mt.parallel_map(writes, plain[:1], plain[1:])
    assert not plain[1].any()


def test_state_that_would_be_lost(engine: mg.Engine) -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return x * 2

    with pytest.raises(RuntimeError, match="calls"):
        mt.parallel_map(Counting(), [torch.ones(2)])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.eye(2).to_sparse(), "layout"),
        (lambda: torch.empty(2, device="meta"), "on meta"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "quantized"),
        (lambda: torch.ones(2).as_subclass(Subclass), "Subclass"),
        (lambda: torch.nn.LazyLinear(2).weight, "lazy"),
        (lambda: mg.ones(2), "of mpgrad"),
    ],
    ids=["sparse", "meta", "quantized", "subclass", "lazy", "mpgrad"],
)
def test_what_cannot_travel_is_named(engine: mg.Engine, make: Any, words: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        holder = {"deep": [make()]}
    with pytest.raises(TypeError, match=words) as raised:
        mt.parallel_map(lambda x: len(holder), [1])
    assert "holder.deep[0]" in str(raised.value)


class Subclass(torch.Tensor):
    pass


# ---------------------------------------------------------------------- results

Pair = namedtuple("Pair", "value text")


def test_trees_come_back(engine: mg.Engine) -> None:
    (x,) = leaves(21, (3,))

    def make(k: int) -> Any:
        y = x * k
        return [Pair(y, f"item {k}"), {"n": [y.sum(), k, None, y]}, x, y.detach()]

    (first, second, itself, detached), _ = mt.parallel_map(make, [2, 3])
    assert type(first) is Pair
    assert bits(first.value) == bits(x * 2)
    assert second["n"][1:3] == [2, None]
    assert second["n"][3] is first.value
    assert itself is x
    assert not detached.requires_grad
    second["n"][0].backward()
    assert bits(x.grad) == bits(torch.full((3,), 2.0))


@pytest.mark.parametrize(
    "dtype",
    [
        "bfloat16", "float16", "float64", "complex64", "float8_e4m3fn", "bool", "int8", "int64",
        "uint16",
    ],
)  # fmt: skip
def test_dtypes(engine: mg.Engine, dtype: str) -> None:
    x = torch.arange(6).reshape(2, 3).float().to(getattr(torch, dtype))
    (same, clone) = mt.parallel_map(lambda y: (y, y.clone()), [x])[0]
    assert same is x
    assert clone.dtype == x.dtype
    assert bits(clone) == bits(x)


def test_a_result_without_memory(engine: mg.Engine) -> None:
    """The zeros that torch's own formulas give."""
    x = torch.ones(3)
    found = mt.parallel_map(
        lambda y: (torch._efficientzerotensor((3,)), torch._efficientzerotensor((2,))), [x]
    )[0]
    assert bits(*found) == bits(torch.zeros(3), torch.zeros(2))
    found[0].add_(1)


def test_a_complex_gradient(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        x = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
        (out,) = run(lambda y: (y.conj() * y * 1j).abs().sum(), [x])
        out.backward()
        return torch.view_as_real(x.grad).tolist()

    same_in_both(program)


@pytest.mark.parametrize("size", [4, 200])
def test_strides(engine: mg.Engine, size: int) -> None:
    (base,) = leaves(22, (2, 3, size, size))
    base = base.detach()
    for x in (
        base.transpose(0, 3),
        base.contiguous(memory_format=torch.channels_last),
        base[0, 0, 0].expand(5, size),
        base[:, :, ::2, 1:],
        base[:, :0],
        base.select(0, 1),
        torch.view_as_complex(base[..., :2].contiguous()).conj(),
    ):
        (strides, twice, itself) = mt.parallel_map(lambda y: (y.stride(), y * 2, y + 0), [x])[0]
        assert bits(twice, itself) == bits(x * 2, x + 0)
        assert twice.stride() == (x * 2).stride()
        if x.is_contiguous() or (x.numel() and x.stride() == torch.empty_like(x).stride()):
            assert strides == x.stride()


def test_results_may_be_changed(engine: mg.Engine) -> None:
    (x,) = leaves(23, (3,))
    (plain, out) = mt.parallel_map(lambda y: (y.detach() * 2, y * 2), [x])[0]
    plain.add_(1)
    assert bits(plain) == bits(x * 2 + 1)
    out.mul_(3)
    out.sum().backward()
    assert bits(x.grad) == bits(torch.full((3,), 6.0))


# ---------------------------------------------------------------------- inside and around


def test_checkpoint_inside(engine: mg.Engine) -> None:
    from torch.utils.checkpoint import checkpoint

    def program(run: Any) -> list[Any]:
        model, xs = net(), leaves(24, *[(5, 4)] * 2)

        def f(x: Any) -> Any:
            return checkpoint(model, x, use_reentrant=False).sum()

        torch.stack(run(f, xs)).sum().backward()
        return bits(*[p.grad for p in model.parameters()])

    same_in_both(program)


def test_torch_func_inside(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        (x,) = leaves(25, (3,))
        (out,) = run(lambda y: torch.func.grad(lambda z: (z**3).sum())(y).sum(), [x])
        out.backward()
        return bits(out, x.grad)

    same_in_both(program)


def test_a_map_inside_of_a_branch(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        (x,) = leaves(26, (3,))

        def outer(k: float) -> Any:
            return sum(mt.parallel_map(lambda j: (x * k * j).sin().sum(), [1.0, 2.0]))

        (out,) = run(outer, [3.0])
        out.backward()
        return bits(out, x.grad)

    same_in_both(program)


def test_a_map_in_a_hook(engine: mg.Engine) -> None:
    x, w = leaves(27, (3,), (3,))

    def hook(grad: Any) -> Any:
        with torch.enable_grad():
            (found,) = mt.parallel_map(lambda g: (g * w).sum(), [grad.detach()])
        found.backward()
        return grad

    (out,) = mt.parallel_map(lambda y: y * 2, [x])
    out.register_hook(hook)
    out.sum().backward()
    assert bits(x.grad, w.grad) == bits(torch.full((3,), 2.0), torch.ones(3))


def test_the_modules_that_torch_makes_are_not_the_users(engine: mg.Engine) -> None:
    def sent(k: int) -> list[str]:
        from mpgrad.calls.users_modules import users_modules

        return [one.__name__ for one in users_modules() if "torch." in one.__name__]

    assert mt.parallel_map(sent, [1]) == [[]]


def test_a_parametrized_module(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        torch.manual_seed(1)
        layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3))
        (out,) = run(lambda x: layer(x).sum(), leaves(28, (2, 4)))
        out.backward()
        return bits(out, *[p.grad for p in layer.parameters()])

    same_in_both(program)


def test_fork_and_wait(engine: mg.Engine) -> None:
    x, w = leaves(29, (3,), (3,))
    futures = [mt.fork(lambda y, k: (y * w * k).sum(), x, k) for k in (1.0, 2.0)]
    outs = [mt.wait(future) for future in futures]
    torch.stack(outs).sum().backward()
    assert torch.allclose(x.grad, 3 * w)
    assert torch.allclose(w.grad, 3 * x)
    with pytest.raises(Ours):
        mt.wait(mt.fork(_raises))


def test_a_backward_in_the_callback_of_a_fork(engine: mg.Engine) -> None:
    (x,) = leaves(33, (3,))
    ended = threading.Event()

    def done(future: Any) -> None:
        future.result().backward()
        ended.set()

    mt.fork(lambda y: y.square().sum(), x).add_done_callback(done)
    assert ended.wait(60)
    assert bits(x.grad) == bits(2 * x)


def _raises() -> None:
    raise Ours


# ---------------------------------------------------------------------- workers


class Meets(torch.autograd.Function):
    """Its backward waits until that of another branch has begun."""

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


def test_the_backward_of_all_branches_is_under_way_at_once(tmp_path: Path) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    (x,) = leaves(30, (3,))

    def branch(mine: str, other: str) -> Any:
        for _ in range(200):
            torch.eye(50) @ torch.eye(50)
        return Meets.apply(x, mine, other).sum(), os.getpid()

    with mg.Engine("process", cpu_workers=2):
        pids: set[int] = set()
        while len(pids) < 2:  # one worker may begin later
            (one, first), (two, second) = mt.parallel_map(branch, [a, b], [b, a])
            pids = {first, second}
        (one * 2 + two).backward()
    assert bits(x.grad) == bits(torch.full((3,), 3.0))


def test_a_worker_dies_between_the_passes() -> None:
    with mg.Engine("process", cpu_workers=2) as engine:
        w, *xs = leaves(31, (100,), *[(100,)] * 4)

        def run(is_killed: bool) -> list[Any]:
            torch.manual_seed(5)
            w.grad = None
            outs = mt.parallel_map(
                lambda x: torch.nn.functional.dropout(x * w, 0.5).square().sum(), xs
            )
            if is_killed:
                for pid in engine.worker_pids():
                    os.kill(pid, signal.SIGKILL)
            torch.stack(outs).sum().backward()
            return bits(*outs, w.grad)

        assert run(True) == run(False)


def test_what_nobody_differentiates_is_released(engine: mg.Engine) -> None:
    (x,) = leaves(34, (5000,))
    died = weakref.ref(x)
    mt.parallel_map(lambda y: y * 2, [x])
    mt.wait(mt.fork(lambda y: y * 2, x))
    del x
    gc.collect()
    assert died() is None


def test_memory_is_flat() -> None:
    with mg.Engine("process", cpu_workers=2) as engine:
        model, xs = net(), leaves(32, *[(500, 4)] * 4)

        def step() -> None:
            outs = mt.parallel_map(lambda x: model(x).square().mean(), xs)
            torch.stack(outs).sum().backward()

        def sizes() -> list[int]:
            gc.collect()
            pids = [os.getpid(), *engine.worker_pids()]
            return [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4 for pid in pids]

        for _ in range(100):
            step()
        before = sizes()
        for _ in range(200):
            step()
        grown = [after - kib for after, kib in zip(sizes(), before, strict=True)]
        assert all(kib < 4096 for kib in grown), grown


def test_data_parallel_loses_no_rows(engine: mg.Engine) -> None:
    class Scales(torch.nn.Module):
        def forward(self, x: Any, factors: Any) -> Any:
            return x * factors

    model = mt.DataParallel(Scales(), parts=4)
    with pytest.raises(ValueError, match="have 8, 3 rows, which gives 4, 3 parts"):
        model(torch.ones(8, 3), torch.ones(3))
    with pytest.raises(ValueError, match="have 8, 3 rows"):
        model([torch.ones(8, 3)], factors={"a": torch.ones(3)})
    assert model(torch.ones(8, 3), torch.ones(8, 1)).shape == (8, 3)
    assert model(torch.ones(0, 3), torch.ones(0, 1)).shape == (0, 3)


def test_attributes_of_tensors_travel(engine: mg.Engine) -> None:
    p = torch.nn.Parameter(torch.ones(3))
    p.groups, p.table = [2.0, 3.0], {"a": (1, "b")}  # type: ignore[attr-defined]

    def scaled(x: Any, p: Any) -> Any:
        return x * p * sum(getattr(p, "groups", [1.0])) * len(getattr(p, "table", ()))

    (y,) = mt.parallel_map(scaled, [torch.ones(3)], shared=(p,))
    assert y.tolist() == [5.0, 5.0, 5.0]


class Poison(torch.autograd.Function):
    """Its backward raises, or kills its worker."""

    @staticmethod
    def forward(ctx: Any, x: Any, signal_number: int) -> Any:
        ctx.signal_number = signal_number
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if ctx.signal_number > 0:
            os.kill(os.getpid(), ctx.signal_number)
        if ctx.signal_number < 0:
            raise ValueError("poison")
        return grad, None


def poisoned(x: Any, signal_number: int) -> Any:
    return Poison.apply(x, signal_number).sum()


def test_an_error_in_backward_names_the_item(engine: mg.Engine) -> None:
    x = torch.ones(3, requires_grad=True)
    outs = mt.parallel_map(poisoned, [x] * 4, [0, 0, -1, 0])
    with pytest.raises(ValueError, match="poison") as caught:
        torch.stack(outs).sum().backward()
    assert "in the backward of poisoned of item 2" in caught.value.__notes__


def test_a_backward_that_kills_its_workers_ends_and_names_the_item() -> None:
    x = torch.ones(3, requires_grad=True)
    with mg.Engine("process", cpu_workers=2):
        outs = mt.parallel_map(poisoned, [x] * 4, [0, 0, signal.SIGSEGV, 0])
        with pytest.raises(mg.errors.WorkerLost, match="the backward of poisoned of item 2"):
            torch.stack(outs).sum().backward()
        torch.stack(mt.parallel_map(poisoned, [x] * 4, [0] * 4)).sum().backward()


def test_auto_learns_how_long_both_passes_take(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[float] = []
    monkeypatch.setattr(MapTime, "add", lambda one, took_us: added.append(took_us))
    sources = [torch.ones(3, requires_grad=True) for _ in range(4)]
    with mg.Engine("auto", cpu_workers=2):
        outs = mt.parallel_map(lambda x: (x * x).sum(), sources)
        assert not added
        torch.stack(outs).sum().backward()
    assert len(added) == 2 * len(sources)  # each branch begins and ends
    assert min(added) > 0
