"""Convolution in blocks of images, in both orders of its columns, against sums over all taps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.arrays.cpu import cpu_conv
from mpgrad.arrays.cpu.cpu_windows import output_length
from mpgrad.nn import functional
from mpgrad.recording.dispatch.operator_call import cpu

RNG = np.random.default_rng(0)


class Geometry(NamedTuple):
    images: tuple[int, int, int, int]
    out_channels: int
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("stride", "padding", "dilation", "groups")}

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return (self.out_channels, self.images[1] // self.groups, *self.kernel)

    @property
    def out_shape(self) -> tuple[int, ...]:
        size = (
            output_length(
                self.images[2 + k],
                self.kernel[k],
                self.stride[k],
                self.padding[k],
                self.dilation[k],
            )
            for k in (0, 1)
        )
        return (self.images[0], self.out_channels, *size)


GEOMETRIES = [
    Geometry((5, 3, 6, 7), 4, padding=(1, 1)),
    Geometry((5, 16, 6, 7), 4, padding=(1, 0)),
    Geometry((4, 17, 7, 6), 3, (3, 2), (2, 1), (1, 2), (1, 2)),
    Geometry((3, 32, 5, 5), 6, groups=2, padding=(1, 1)),
    Geometry((3, 8, 5, 5), 8, groups=8, stride=(2, 2), padding=(1, 1)),
    Geometry((3, 4, 5, 5), 6, (1, 1), (2, 2)),
    Geometry((1, 20, 4, 4), 2, (1, 3), dilation=(1, 1)),
    Geometry((0, 20, 4, 4), 2),
    Geometry((2, 16, 5, 6), 4, (2, 3), padding=(2, 1)),
    Geometry((2, 16, 5, cpu_conv.NARROW_MAX + 1), 4, padding=(1, 1)),
    Geometry((2, 32, 9, 6), 4, (2, 3), padding=(1, 1), dilation=(2, 2), groups=2),
    Geometry((2, 2, 5, 4), 3, (2, 3), padding=(1, 1)),
    Geometry((2, 128, 16, 16), 66, padding=(1, 1)),
]


def by_taps(geometry: Geometry, x: np.ndarray, weight: np.ndarray, grad: np.ndarray) -> Any:
    """conv2d and its gradients, one tap and one group after another."""
    (top, left), (n, channels, height, width) = geometry.padding, x.shape
    padded = np.zeros((n, channels, height + 2 * top, width + 2 * left))
    padded[:, :, top : top + height, left : left + width] = x
    out, to_x, to_weight = np.zeros(grad.shape), np.zeros_like(padded), np.zeros(weight.shape)
    rows, columns = (np.arange(grad.shape[2 + k]) * geometry.stride[k] for k in (0, 1))
    per_group, out_per_group = channels // geometry.groups, len(weight) // geometry.groups
    for group in range(geometry.groups):
        ins = slice(group * per_group, (group + 1) * per_group)
        outs = slice(group * out_per_group, (group + 1) * out_per_group)
        for i, j in np.ndindex(geometry.kernel):
            at = np.ix_(rows + i * geometry.dilation[0], columns + j * geometry.dilation[1])
            met, tap = padded[:, ins][:, :, *at], weight[outs, :, i, j]
            out[:, outs] += np.einsum("nchw,oc->nohw", met, tap)
            to_weight[outs, :, i, j] = np.einsum("nohw,nchw->oc", grad[:, outs], met)
            to_x[:, ins][:, :, *at] += np.einsum("nohw,oc->nchw", grad[:, outs], tap)
    return out, to_x[:, :, top : top + height, left : left + width], to_weight


@pytest.mark.parametrize("block_bytes", [1, 20_000, 2**21])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_the_three_convolutions(
    geometry: Geometry, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_conv, "BLOCK_BYTES", block_bytes)
    x, weight = RNG.standard_normal(geometry.images), RNG.standard_normal(geometry.weight_shape)
    grad = RNG.standard_normal(geometry.out_shape)
    out, to_x, to_weight = by_taps(geometry, x, weight, grad)
    options = geometry.options
    np.testing.assert_allclose(cpu.conv2d(x, weight, **options), out, rtol=1e-10, atol=1e-12)
    found = cpu.conv2d_weight_grad(x, grad, weight_shape=weight.shape, **options)
    np.testing.assert_allclose(found, to_weight, rtol=1e-10, atol=1e-12)
    found = cpu.conv2d_input_grad(grad, weight, input_shape=x.shape, **options)
    np.testing.assert_allclose(found, to_x, rtol=1e-10, atol=1e-12)
    assert found.flags.c_contiguous


def test_columns_of_many_images_take_little_memory() -> None:
    """Of all images at once they would take nine times as much as the images."""
    x = np.ones((64, 16, 32, 32), np.float32)
    padded = np.ones((64, 16, 34, 34), np.float32)
    windows = cpu_conv._windows(padded, (3, 3), (1, 1), (1, 1), 1)
    held = [columns.base for _, columns in cpu_conv._blocks(windows, cpu_conv._CHANNELS_FIRST, 0)]
    assert len(held) > 1
    assert {id(memory) for memory in held} == {id(held[0])}
    assert held[0].nbytes <= cpu_conv.BLOCK_BYTES < x.nbytes


def test_images_without_pixels_have_gradients_of_zeros() -> None:
    x, weight = mg.zeros(1, 2, 0, requires_grad=True), mg.ones(2, 3, 4, requires_grad=True)
    functional.conv_transpose1d(x, weight).sum().backward()
    assert x.grad.shape == (1, 2, 0)
    assert not weight.grad.numpy().any()
