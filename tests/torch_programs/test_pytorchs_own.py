"""What PyTorch tests its own autograd with, inside of branches: its operators, Modules and custom
Functions, and its tests of checkpoint, hooks and grad."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import gradcheck, gradgradcheck  # noqa: E402
from torch.utils.checkpoint import checkpoint, checkpoint_sequential  # noqa: E402

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402
from tests.operator_database.database import operators  # noqa: E402
from tests.torch_programs.test_both_passes import (  # noqa: E402
    bits,
    engine,
    every_test_is_watched,
    leaves,
    net,
    same_in_both,
    serial,
)

__all__ = ["engine", "every_test_is_watched"]
pytestmark = [pytest.mark.process, pytest.mark.torch]


@pytest.fixture(autouse=True)
def warnings_are_torchs() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ---------------------------------------------------------------------- its databases


def _is_installed(distribution: str) -> bool:
    """Whether it is, and not a stand-in of another test."""
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


needs_expecttest = pytest.mark.skipif(
    not _is_installed("expecttest"), reason="workers import PyTorch's databases with expecttest"
)


@needs_expecttest
def test_its_custom_functions(engine: mg.Engine) -> None:
    """gradcheck and gradgradcheck of each through a branch."""
    operators()  # it can be imported then
    from torch.testing._internal.autograd_function_db import autograd_function_db

    checked = 0
    for info in autograd_function_db:
        for sample in info.sample_inputs("cpu", torch.float64, requires_grad=True):
            inputs = [sample.input, *sample.args]
            if not all(isinstance(one, torch.Tensor) for one in inputs) or sample.kwargs:
                continue

            def through(*tensors: Any, op: Any = info.op) -> Any:
                (out,) = mt.parallel_map(lambda *xs: op(*xs), *[[one] for one in tensors])
                return out

            for check in (gradcheck, gradgradcheck):
                if check(info.op, inputs, raise_exception=False):
                    assert check(through, inputs), info.name
                    checked += 1
            break
    assert checked >= 5


def _is_same(one: Any, other: Any) -> bool:
    return list(map(_bits, _tensors(one))) == list(map(_bits, _tensors(other)))


def _bits(one: Any) -> Any:
    if one.layout != torch.strided or one.is_quantized:
        return str(one)
    plain = torch.empty(one.numel(), dtype=one.dtype)
    plain.copy_(one.detach().reshape(-1))
    return one.dtype, one.shape, plain.view(torch.uint8).tolist()


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [one for part in value for one in _tensors(part)]
    return []


def _both_passes(run: Callable[..., Any], fn: Any, args: Any) -> list[Any]:
    """The results of ``fn`` and its gradients."""
    torch.manual_seed(0)
    (found,) = run(fn, *[[one] for one in args])
    wanted = [one for one in _tensors(list(args)) if one.requires_grad]
    outs = [one for one in _tensors(found) if one.requires_grad]
    total = [(out * torch.ones_like(out)).sum() for out in outs]
    total = [one.abs() if one.is_complex() else one for one in total]
    grads = torch.autograd.grad(total, wanted, allow_unused=True) if total and wanted else ()
    return [found, [one for one in grads if one is not None]]


#: It shows memory: an argument travels without its gaps.
_DIFFERENT = frozenset({"as_strided"})
#: They change an argument in place.
_REFUSED = frozenset(
    {
        *("cauchy", "exponential", "geometric", "log_normal", "normal", "uniform"),
        "nn.functional.instance_norm",
    }
)


@pytest.fixture(params=["local", "process"])
def one_engine(request: pytest.FixtureRequest) -> Iterator[mg.Engine]:
    with mg.Engine(request.param, cpu_workers=2) as engine:
        yield engine


@needs_expecttest
@pytest.mark.slow
def test_its_operators(one_engine: mg.Engine) -> None:
    """Each with its first two samples: the same bits as plain torch, forward and backward."""
    different, refused, checked = [], [], 0
    for op in [entry for entries in operators().values() for entry in entries]:
        if torch.float32 not in op.supported_dtypes("cpu") or "empty" in op.name:
            continue  # the memory of an empty tensor is what it happens to be
        needs = op.supports_autograd
        for sample, _ in zip(op.sample_inputs("cpu", torch.float32, needs), range(2), strict=False):
            args, kwargs = (sample.input, *sample.args), sample.kwargs

            def call(*args: Any, op: Any = op.op, kwargs: Any = kwargs) -> Any:
                return op(*args, **kwargs)

            try:
                first, second = (_both_passes(serial, call, args) for _ in range(2))
            except Exception:
                continue  # not a call of plain torch's, either
            if not _is_same(first, second):
                continue  # random
            try:
                found = _both_passes(mt.parallel_map, call, args)
            except (TypeError, RuntimeError) as error:
                refused.append((op.name, f"{type(error).__name__}: {error}"[:160]))
                continue
            checked += 1
            if not _is_same(found, first):
                different.append(op.name)
    assert checked > 900
    assert set(different) <= _DIFFERENT
    assert {name for name, _ in refused} <= _REFUSED


@pytest.mark.slow
def test_its_modules(one_engine: mg.Engine) -> None:
    """Each with its first two samples, in training."""
    operators()  # it can be imported then
    from torch.testing._internal.common_modules import module_db

    different, refused, checked = [], [], 0
    for info in module_db:
        samples = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=True
        )
        for sample, _ in zip(samples, range(2), strict=False):
            if sample.forward_input is None:
                continue
            args, kwargs = sample.forward_input.args, sample.forward_input.kwargs

            def passes(
                run: Any,
                info: Any = info,
                sample: Any = sample,
                args: Any = args,
                kwargs: Any = kwargs,
            ) -> Any:
                torch.manual_seed(1)
                made = sample.constructor_input
                module = info.module_cls(*made.args, **made.kwargs)
                found = _both_passes(run, lambda *xs: module(*xs, **kwargs), args)
                return [found, [*module.buffers()]]

            try:
                first, second = passes(serial), passes(serial)
            except Exception:
                continue
            if not _is_same(first, second):
                continue
            try:
                found = passes(mt.parallel_map)
            except (TypeError, RuntimeError) as error:
                refused.append((info.name, f"{type(error).__name__}: {error}"[:160]))
                continue
            checked += 1
            if not _is_same(found, first):
                different.append(info.name)
    assert checked > 100
    assert different == []
    assert all("lazy" in reason for _, reason in refused), refused


# ---------------------------------------------------------------------- its tests of checkpoint


def test_checkpoint(engine: mg.Engine) -> None:
    """test_utils.py, TestCheckpoint: segments, and arguments and results that are no tensors."""

    def program(run: Any) -> list[Any]:
        model, xs = net(), leaves(0, *[(5, 4)] * 2)

        def segments(x: Any) -> Any:
            return checkpoint_sequential(model, 2, x, use_reentrant=False).sum()

        def not_tensors(x: Any, y: Any) -> Any:
            def both(x: Any, scale: float, other: Any) -> Any:
                return model(x) * scale, other

            out, text = checkpoint(both, x, 2.0, y, use_reentrant=False)
            return out.sum() if text == "text" else out.mean()

        outs = run(segments, xs) + run(not_tensors, xs, ["text", "other"])
        torch.stack(outs).sum().backward()
        return bits(*outs, *[p.grad for p in model.parameters()], *[x.grad for x in xs])

    same_in_both(program)


def test_reentrant_checkpoint_is_torchs_error(engine: mg.Engine) -> None:
    """A branch is differentiated as by torch.autograd.grad, which that does not allow."""
    model, (x,) = net(), leaves(13, (5, 4))
    (out,) = mt.parallel_map(lambda y: checkpoint(model, y, use_reentrant=True).sum(), [x])
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        out.backward()


def test_checkpoint_keeps_random_numbers(engine: mg.Engine) -> None:
    """test_checkpoint_rng_cpu: what is computed again has the same dropout."""
    (x,) = leaves(1, (200,))

    def noisy(y: Any) -> Any:
        return checkpoint(lambda z: torch.nn.functional.dropout(z * 1, 0.5), y, use_reentrant=False)

    (out,) = mt.parallel_map(noisy, [x])
    out.sum().backward()
    assert bits(x.grad) == bits((out != 0) * 2.0)


def test_checkpoint_around_a_map(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        w, *xs = leaves(2, (4,), *[(4,)] * 2)

        def inner(w: Any, *xs: Any) -> Any:
            return torch.stack(run(lambda x: (w * x).sin().sum(), list(xs))).sum()

        checkpoint(inner, w, *xs, use_reentrant=False).backward()
        return bits(w.grad, *[x.grad for x in xs])

    same_in_both(program)


# ---------------------------------------------------------------------- its tests of hooks


def test_saved_tensors_hooks(engine: mg.Engine) -> None:
    """test_autograd.py, TestAutogradSavedTensorsHooks: inside of a branch, and save_on_cpu."""

    def program(run: Any) -> list[Any]:
        a, b = leaves(3, (4,), (4,))

        def packed(x: Any, y: Any) -> Any:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
                out = x * y
            with torch.autograd.graph.save_on_cpu():
                return (out * y).sum()

        (out,) = run(packed, [a], [b])
        out.backward()
        return bits(out, a.grad, b.grad)

    same_in_both(program)


def test_hooks_inside_of_a_branch(engine: mg.Engine) -> None:
    """Of tensors and of Nodes, which change gradients."""

    def program(run: Any) -> list[Any]:
        a, b = leaves(4, (4,), (4,))

        def hooked(x: Any, y: Any) -> Any:
            middle = x * y
            middle.register_hook(lambda grad: grad * 2)
            out = middle.sin()
            out.grad_fn.register_prehook(lambda grads: (grads[0] * 3,))
            out.grad_fn.register_hook(lambda gave, got: (gave[0] + 1,))
            return out.sum()

        (out,) = run(hooked, [a], [b])
        out.backward()
        return bits(a.grad, b.grad)

    same_in_both(program)


def test_multi_grad_hooks(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        seen: list[Any] = []
        a, b = leaves(5, (4,), (4,))
        outs = run(lambda x, y: (x * y, (x + y).exp()), [a], [b])[0]
        handle = torch.autograd.graph.register_multi_grad_hook(
            [*outs, a], lambda grads: seen.append(bits(*grads))
        )
        sum(out.sum() for out in outs).backward()
        handle.remove()
        return [*seen, *bits(a.grad, b.grad)]

    same_in_both(program)


def test_hooks_of_modules(engine: mg.Engine) -> None:
    """They travel with the Module; what they change in gradients counts."""

    def program(run: Any) -> list[Any]:
        model, (x,) = net(), leaves(6, (5, 4))
        model[0].register_forward_hook(lambda module, args, out: out * 2)
        model[2].register_full_backward_hook(lambda module, gave, got: (gave[0] * 3,))
        (out,) = run(lambda y: model(y).sum(), [x])
        out.backward()
        return bits(x.grad, *[p.grad for p in model.parameters()])

    same_in_both(program)


# ---------------------------------------------------------------------- its tests of grad


def test_jacobians_and_hessians(engine: mg.Engine) -> None:
    """torch.autograd.functional around a map."""
    from torch.autograd.functional import hessian, jacobian, vhp

    for strategy in (jacobian, hessian, lambda fn, x: vhp(fn, x, torch.ones_like(x))):

        def program(run: Any, strategy: Any = strategy) -> Any:
            (x,) = leaves(7, (3,))
            return strategy(lambda y: run(lambda z: (z**3).sum(), [y])[0], x.detach())

        for one, other in zip(
            _tensors(program(serial)), _tensors(program(mt.parallel_map)), strict=True
        ):
            assert torch.allclose(one, other)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return 2 * grad * ctx.saved_tensors[0]


def test_batched_gradients(engine: mg.Engine) -> None:
    """test_autograd.py, is_grads_batched: many backwards in one, in this process."""
    mt.parallelize(Square)
    (x,) = leaves(8, (3,))
    for out in (mt.parallel_map(lambda y: y * y, [x])[0], Square.apply(x)):
        (found,) = torch.autograd.grad(out, x, torch.eye(3), is_grads_batched=True)
        assert torch.equal(found, torch.diag(2 * x))


def test_several_roots(engine: mg.Engine) -> None:
    """test_autograd.py: roots that share parts, a root twice, gradients as arguments."""

    def program(run: Any) -> list[Any]:
        w, *xs = leaves(9, (4,), *[(4,)] * 3)
        outs = run(lambda x: (w * x).sin(), xs)
        torch.autograd.backward([*outs, outs[0]], [torch.ones(4) * k for k in range(4)])
        return bits(w.grad, *[x.grad for x in xs])

    same_in_both(program)


def test_a_backward_in_another_thread(engine: mg.Engine) -> None:
    import threading

    w, *xs = leaves(10, (4,), *[(4,)] * 3)
    outs = mt.parallel_map(lambda x: (w * x).sum(), xs)
    threads = [threading.Thread(target=out.backward) for out in outs]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert torch.allclose(w.grad, sum(xs))
    assert bits(*[x.grad for x in xs]) == bits(w, w, w)


def test_inference_tensors_and_deepcopies(engine: mg.Engine) -> None:
    """What a loop may do with results: they are tensors like others."""
    import copy
    import io

    (x,) = leaves(11, (4,))
    (plain, out) = mt.parallel_map(lambda y: (y.detach() * 2, y * 2), [x])[0]
    assert bits(copy.deepcopy(plain)) == bits(plain)
    with pytest.raises(RuntimeError, match="created explicitly"):
        copy.deepcopy(out)
    file = io.BytesIO()
    torch.save(out.detach(), file)
    file.seek(0)
    assert bits(torch.load(file)) == bits(out)
    assert plain.untyped_storage().nbytes() >= plain.nbytes
