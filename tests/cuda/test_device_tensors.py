"""Tensors on a GPU: every operator, devices that differ, and the ways between them."""

from __future__ import annotations

import copy
import functools
import pickle
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.arrays.cuda import device_arrays
from mpgrad.nn import functional
from mpgrad.recording.tensors.storage import is_exclusive
from mpgrad.recording.tensors.tensor import Tensor
from tests.cuda.conftest import forget_driver
from tests.cuda.fake_driver import NO_GPUS, TWO_GPUS
from tests.ops.cases import CASES, Case
from tests.ops.test_operators import _Names, cotangent_for


def assert_equal(found: Tensor, expected: Tensor, gpus: str, *, is_exact: bool = True) -> None:
    found, expected = (t.detach().cpu().numpy() for t in (found, expected))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if gpus == TWO_GPUS and is_exact:
        assert found.tobytes() == expected.tobytes()
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


def results(case: Case, device: str) -> list[Tensor | None]:
    """The value of a case, its gradients, and the gradients of those."""
    mg.manual_seed(0)
    inputs = [mg.tensor(a, device=device, requires_grad=True) for a in case.arrays()]
    constants = SimpleNamespace(tensor=functools.partial(mg.tensor, device=device))
    out = case.function(_Names(constants, functional, mg), *inputs)
    if not out.requires_grad:
        return [out]
    seed = mg.tensor(cotangent_for(out), device=device)
    first = mg.grad(out, inputs, seed, create_graph=True, allow_unused=True)
    smooth = [g for g in first if g is not None and g.requires_grad]
    if not smooth:
        return [out, *first]
    total = sum((g.abs() ** 2).sum() for g in smooth)
    return [out, *first, *mg.grad(total, inputs, allow_unused=True)]


@pytest.mark.row("N1")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_operator_and_its_gradients(case: Case, gpus: str) -> None:
    try:
        expected = results(case, "cpu")
    except (NotImplementedError, RuntimeError) as error:
        with pytest.raises(type(error)):
            results(case, "cuda")
        return
    for ours, theirs in zip(results(case, "cuda"), expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours.device == mg.device("cuda", 0)
            # Each backend adds up convolutions, and sums by channel, in an order of its own.
            is_exact = "conv" not in case.name and "batch_norm" not in case.name
            is_exact = is_exact and case.name not in (
                "add broadcasting",
                "complex sum dims keepdim",
            )
            assert_equal(ours, theirs, gpus, is_exact=is_exact)


# ---------------------------------------------------------------------- ways between devices


@pytest.mark.row("N6")
def test_a_gradient_goes_back_where_its_tensor_came_from(gpus: str) -> None:
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    w = mg.tensor([3.0, 4.0], device="cuda", requires_grad=True)
    there = x.to("cuda")
    assert there.grad_fn.name() == "ToCopyBackward0"
    back = (there * w).cpu()
    assert back.device == mg.device("cpu")
    (back.sum() + x.sum()).backward()
    assert x.grad.tolist() == [4, 5]
    assert x.grad.device == mg.device("cpu")
    assert w.grad.tolist() == [1, 2]
    assert w.grad.device == w.device


def test_a_copy_to_another_gpu_has_what_was_there_when_it_was_asked_for(two: None) -> None:
    x = mg.ones(4, device="cuda:0")
    copy = x.to("cuda:1")
    x.add_(1)  # the GPUs may not have copied yet
    assert copy.tolist() == [1] * 4
    # One with gaps is packed on its own GPU first.
    turned = (mg.arange(6.0).to("cuda:0") * 2).reshape(2, 3).T.to("cuda:1")
    assert turned.tolist() == [[0, 6], [2, 8], [4, 10]]


@pytest.mark.row("N7")
def test_a_continuation_from_cpu_to_gpu_to_cpu_to_gpu(two: None) -> None:
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    y = x
    for device in ("cuda:0", "cpu", "cuda:1", "cuda:0", "cpu"):
        y = (y * 2).to(device)
    y.sum().backward()
    assert x.grad.tolist() == [32, 32]


def test_nothing_is_recorded_where_nothing_moves(gpus: str) -> None:
    x = mg.ones(2, device="cuda")
    assert x.to("cuda") is x
    assert x.cuda() is x
    assert x.cuda(0) is x
    assert x.to(0) is x
    assert x.to("cuda", mg.float64).dtype == mg.float64
    assert x.to("cpu", copy=True).device == mg.device("cpu")


@pytest.mark.row("N8")
def test_a_tensor_without_dimensions_may_lie_on_the_cpu(gpus: str) -> None:
    x = mg.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    factor = mg.tensor(3.0, requires_grad=True)
    (x * factor).sum().backward()
    assert factor.grad.item() == 3
    assert factor.grad.device == factor.device
    assert x.grad.tolist() == [3, 3]


def test_any_other_mixture_is_an_error(gpus: str) -> None:
    x, y = mg.ones(2, device="cuda"), mg.ones(2)
    for mixed in (lambda: x + y, lambda: x @ y, lambda: mg.cat([x, y]), lambda: x.add_(y)):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            mixed()


def test_two_gpus_are_two_devices(two: None) -> None:
    x, y = mg.ones(2, device="cuda:0"), mg.ones(2, device="cuda:1")
    with pytest.raises(RuntimeError, match="cuda:0 and cuda:1"):
        x + y
    assert (x.to("cuda:1") + y).device == mg.device("cuda:1")
    assert (y + 1).tolist() == [2, 2]


def test_an_index_may_lie_on_the_cpu(gpus: str) -> None:
    x = mg.arange(6.0, device="cuda").reshape(2, 3).requires_grad_()
    x[mg.tensor([0, 0, 1])].sum().backward()
    assert x.grad.tolist() == [[2, 2, 2], [1, 1, 1]]
    y = x.detach().clone()
    y[mg.tensor([True, False])] = 7
    y[0, 1:] = mg.tensor([8.0, 9.0], device="cuda")
    assert y.tolist() == [[7, 8, 9], [3, 4, 5]]


def test_a_gradient_for_another_device_is_refused(gpus: str) -> None:
    x = mg.ones(2, device="cuda", requires_grad=True)
    with pytest.raises(RuntimeError, match="expected device cuda:0 but got cpu"):
        (x * 2).backward(mg.ones(2))
    with pytest.raises(RuntimeError, match="with device 'cpu' to a tensor with device 'cuda:0'"):
        x.grad = mg.ones(2)


@pytest.mark.row("N8", "C10")
def test_a_function_that_returns_a_gradient_on_another_device(gpus: str) -> None:
    class Stray(mg.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad.cpu()

    x = mg.ones(2, device="cuda", requires_grad=True)
    with pytest.raises(RuntimeError, match="expected device cuda:0 but got cpu"):
        Stray.apply(x).sum().backward()
    scalar = mg.ones((), device="cuda", requires_grad=True)
    Stray.apply(scalar).backward()
    assert scalar.grad.device == scalar.device


# ---------------------------------------------------------------------- what a tensor is


def test_what_a_tensor_says_of_itself(gpus: str) -> None:
    x = mg.tensor([1.0, 2.5], device="cuda:0", dtype=mg.float64, requires_grad=True)
    assert x.is_cuda
    assert not x.is_cpu
    assert x.get_device() == 0
    assert mg.ones(1).get_device() == -1
    assert repr(x) == (
        "tensor([1.0000, 2.5000], device='cuda:0', dtype=mpgrad.float64,\n"
        "       requires_grad=True)"
    )
    assert x[1].item() == 2.5
    assert x.tolist() == [1.0, 2.5]
    assert float(x.detach().sum()) == 3.5
    assert bool((x > 0).all())


def test_numpy_is_refused(gpus: str) -> None:
    x = mg.ones(2, device="cuda")
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        x.numpy()
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
        np.asarray(x)
    assert x.numpy(force=True).tolist() == [1, 1]


def test_factories_make_it_where_they_are_told(gpus: str) -> None:
    there = mg.device("cuda", 0)
    made = [
        mg.zeros(2, 2, device="cuda"),
        mg.ones(3, device="cuda"),
        mg.full((2,), 7, device="cuda"),
        mg.empty(2, device="cuda"),
        mg.arange(3, device="cuda"),
        mg.linspace(0, 1, 3, device="cuda"),
        mg.eye(2, device="cuda"),
        mg.rand(2, device="cuda"),
        mg.randn(2, device="cuda"),
        mg.randint(3, (2,), device="cuda"),
        mg.randperm(3, device="cuda"),
        mg.as_tensor(np.ones(2), device="cuda"),
    ]
    made += [like(made[0]) for like in (mg.zeros_like, mg.ones_like, mg.randn_like, mg.empty_like)]
    assert {tensor.device for tensor in made} == {there}
    mg.manual_seed(3)
    here = mg.randn(5)
    mg.manual_seed(3)
    assert mg.randn(5, device="cuda").tolist() == here.tolist()


def test_in_place_changes(gpus: str) -> None:
    x = mg.ones(2, 2, device="cuda", requires_grad=True)
    y = x * 1
    y[0].mul_(3)
    y += 1
    y.clamp_(max=3)
    y.copy_(y.cpu() * 2)
    y.sum().backward()
    assert y.tolist() == [[6, 6], [4, 4]]
    assert x.grad.tolist() == [[0, 0], [2, 2]]
    with pytest.raises(RuntimeError, match="more than one element"):
        mg.ones(1, device="cuda").expand(3).add_(1)


def test_gradients_accumulate_in_place(gpus: str) -> None:
    x = mg.ones(3, device="cuda", requires_grad=True)
    (x * 2).sum().backward()
    first = x.grad
    (x * 3).sum().backward()
    assert x.grad is first
    assert first.tolist() == [5, 5, 5]
    y = x.clone()
    (y + y + y * y).sum().backward()
    assert first.tolist() == [9, 9, 9]


class Changes(mg.Function):
    """Changes its gradient in place, and keeps it."""

    kept: ClassVar[list[mg.Tensor]] = []

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.detach() * 1

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        Changes.kept.append(grad)
        grad.view(-1)[1:].mul_(2)
        grad[0].add_(1)
        return grad


class Keeps(Changes):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        Changes.kept.append(grad)
        return grad.view(grad.shape)


def test_a_gradient_that_others_have_is_changed_in_place(gpus: str) -> None:
    x, y, z, seed = (mg.ones(3, device="cuda", requires_grad=at < 3) for at in range(4))
    (Changes.apply(x) + y + Keeps.apply(z)).backward(seed)
    (Keeps.apply(z) + y).sum().backward()
    for grad in Changes.kept:
        grad.mul_(100)
    Changes.kept.clear()
    assert x.grad.tolist() == [2, 2, 2]
    assert y.grad.tolist() == z.grad.tolist() == [2, 2, 2]
    assert seed.tolist() == [1, 1, 1]


def test_gradients_without_elements_accumulate(gpus: str) -> None:
    """CuPy's strides of such arrays are zeros, as where an element is repeated."""
    x = mg.ones(0, 3, device="cuda", requires_grad=True)
    for _ in range(2):
        (x * 2).sum().backward()
    assert x.grad.shape == (0, 3)


def test_complex_numbers_as_real_ones_are_a_view(gpus: str) -> None:
    """The results of CuPy's as_strided are views that do not say so."""
    x, w = (mg.ones(3, dtype=d, device="cuda") for d in (mg.complex64, mg.float32))
    for leaf in (x, w):
        leaf.requires_grad_()
    for z in (x * 1, (x * 1)[::2]):
        mg.view_as_real(z)[0].add_(w[:2])
        (grad,) = mg.grad((z * z.conj()).real.sum(), [w])
        assert (z[0].item(), grad.tolist()) == (2 + 1j, [4, 2, 0])


def test_a_gradient_that_was_reshaped_is_not_copied(gpus: str) -> None:
    whole = device_arrays.cuda_namespace().zeros((2, 3), np.dtype("f4"))
    array = whole.reshape(6)
    assert not is_exclusive(array)
    del whole
    assert is_exclusive(array)
    for view in (array[:6], array.reshape(3, 2)):
        assert not is_exclusive(array)
        assert not is_exclusive(view)
    del view
    assert is_exclusive(array)


def test_copies_and_pickles_stay_on_their_device(gpus: str) -> None:
    x = mg.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    for twin in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert twin.device == x.device
        assert twin.requires_grad
        assert twin.tolist() == [1, 2]


def test_a_failed_backward_leaves_grad_as_it_was(gpus: str) -> None:
    x = mg.ones(2, device="cuda", requires_grad=True)
    x.sum().backward()

    def fail(grad: Tensor) -> None:
        raise ValueError("no")

    y = x * 2
    y.register_hook(fail)
    with pytest.raises(ValueError, match="no"):
        (y.sum() + x.sum()).backward()
    assert x.grad.tolist() == [1, 1]


def test_save_on_cpu_keeps_it_there(gpus: str) -> None:
    x = mg.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    with mg.autograd.graph.save_on_cpu():
        y = x * x
    (handle, _) = y.grad_fn._raw_saved_a, None
    y.sum().backward()
    assert x.grad.tolist() == [2, 4]
    assert x.grad.device == x.device
    assert handle is not None


# ---------------------------------------------------------------------- without a GPU


def test_without_a_gpu_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPGRAD_CUDA_DRIVER", NO_GPUS)
    forget_driver()
    try:
        with pytest.raises(RuntimeError, match="no NVIDIA GPU"):
            mg.ones(2, device="cuda")
        with pytest.raises(RuntimeError, match="no NVIDIA GPU"):
            mg.ones(2).cuda()
    finally:
        forget_driver()


def test_a_device_that_is_not_there(gpus: str) -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        mg.ones(2, device="cuda:17")
    with pytest.raises(RuntimeError, match="Expected one of cpu, cuda"):
        mg.ones(2, device="tpu")
