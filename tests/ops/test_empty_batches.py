"""Empty batches, dimensions as Tensors, and PyTorch's other spellings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mpgrad as mg
from mpgrad import nn

F = nn.functional

Call = Callable[[], mg.Tensor]


def unpooled(dims: int, *shape: int) -> mg.Tensor:
    pooled = getattr(nn, f"MaxPool{dims}d")(2, stride=2, return_indices=True)(mg.ones(*shape))
    return getattr(nn, f"MaxUnpool{dims}d")(2, stride=2)(*pooled)


EMPTY: dict[str, tuple[Call, tuple[int, ...]]] = {
    "adaptive 1d": (lambda: F.adaptive_avg_pool1d(mg.ones(0, 10), 5), (0, 5)),
    "adaptive 1d, batch": (lambda: F.adaptive_avg_pool1d(mg.ones(0, 3, 5), 5), (0, 3, 5)),
    "adaptive 2d": (lambda: F.adaptive_avg_pool2d(mg.ones(0, 3, 10, 9), 5), (0, 3, 5, 5)),
    "adaptive 2d, channels": (lambda: F.adaptive_avg_pool2d(mg.ones(2, 0, 10, 9), 3), (2, 0, 3, 3)),
    "adaptive 3d": (lambda: F.adaptive_avg_pool3d(mg.ones(0, 3, 4, 4, 4), 2), (0, 3, 2, 2, 2)),
    "fractional 2d": (
        lambda: F.fractional_max_pool2d(mg.ones(0, 16, 50, 32), 2, output_ratio=0.5),
        (0, 16, 25, 16),
    ),
    "fractional 3d": (
        lambda: F.fractional_max_pool3d(mg.ones(0, 3, 10, 10, 10), 2, output_ratio=0.5),
        (0, 3, 5, 5, 5),
    ),
    "unpool 1d": (lambda: unpooled(1, 0, 3, 10), (0, 3, 10)),
    "unpool 2d": (lambda: unpooled(2, 0, 3, 10, 6), (0, 3, 10, 6)),
    "unpool 3d": (lambda: unpooled(3, 0, 3, 4, 6, 2), (0, 3, 4, 6, 2)),
    "linear cross entropy": (
        lambda: F.linear_cross_entropy(mg.ones(3, 0), mg.ones(4, 0), mg.tensor([0, 1, 2])),
        (),
    ),
}


@pytest.mark.parametrize("name", EMPTY)
def test_layers_of_nothing(name: str) -> None:
    call, shape = EMPTY[name]
    assert tuple(call().shape) == shape


def test_images_without_pixels() -> None:
    for x in (mg.ones(2, 3, 0, 4), mg.ones(2, 3, 4, 0)):
        with pytest.raises(RuntimeError, match="non-zero size for non-batch dimensions"):
            F.adaptive_avg_pool2d(x, 5)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_without_input_channels(dims: int) -> None:
    x = mg.ones(2, 0, *(7,) * dims, requires_grad=True)
    weight = mg.ones(8, 0, *(2,) * dims, requires_grad=True)
    bias = mg.arange(8.0, requires_grad=True)
    convolve = getattr(F, f"conv{dims}d")
    found = convolve(x, weight, bias, stride=2)
    assert tuple(found.shape) == (2, 8, *(3,) * dims)
    found.sum().backward()
    assert bias.grad.tolist() == [2.0 * 3**dims] * 8
    assert (x.grad.shape, weight.grad.shape) == (x.shape, weight.shape)
    assert not convolve(x, weight, stride=2).any()


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_second_derivatives_of_nothing(name: str, shape: tuple[int, int]) -> None:
    x = mg.ones(*shape, requires_grad=True)
    first = mg.autograd.grad(getattr(mg, name)(x, 0 if shape[0] else 1).sum(), x, create_graph=True)
    (second,) = mg.autograd.grad(first[0].sum(), x)
    assert tuple(second.shape) == shape


OF_DIM: dict[str, Callable[[mg.Tensor, Any], Any]] = {
    name: getattr(mg, name)
    for name in ("cumsum", "cumprod", "sum", "softmax", "squeeze", "unsqueeze", "argmax", "flip")
} | {"cat": lambda x, dim: mg.cat([x, x], dim), "transpose": lambda x, dim: x.transpose(dim, 0)}


@pytest.mark.parametrize("name", OF_DIM)
def test_a_dimension_may_be_a_tensor(name: str) -> None:
    x = mg.arange(6.0).reshape(2, 3)
    assert OF_DIM[name](x, mg.tensor(1)).equal(OF_DIM[name](x, 1))
    for wrong in (mg.tensor([1, 0]), mg.tensor(1.0), mg.tensor(True)):
        with pytest.raises(TypeError):
            mg.cumsum(x, wrong)


def test_names_of_the_size_of_parts() -> None:
    x = mg.arange(6)
    assert [p.tolist() for p in mg.split(x, split_size_or_sections=4)] == [[0, 1, 2, 3], [4, 5]]
    assert [p.tolist() for p in x.split(split_size=[1, 5])] == [[0], [1, 2, 3, 4, 5]]
    with pytest.raises(TypeError, match="split_size"):
        mg.split(x)
    with pytest.raises(TypeError, match="mean the same"):
        mg.split(x, 2, split_size_or_sections=2)
