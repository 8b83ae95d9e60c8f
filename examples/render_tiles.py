"""A picture in 64 tiles: each tile is ray-marched in Python, and so is its derivative.

The scene is a frozen dataclass on ctx. With an ordinary class in its place the backward would run
in this process, and one line on stderr would say so; the last lines here show it.

python examples/render_tiles.py [width in pixels] [file.ppm]
"""

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

import mpgrad as mg

WIDTH = int(sys.argv[1]) if len(sys.argv) > 1 else 128
TILES = 8  # in each direction


@dataclass(frozen=True)
class Camera:
    """Where the eye is, and how far the picture plane."""

    distance: float
    focus: float


class MovableCamera:
    """The same, but it may change at any time."""

    def __init__(self, distance: float, focus: float) -> None:
        self.distance, self.focus = distance, focus


AnyCamera = Camera | MovableCamera


def shade(camera: AnyCamera, x: float, y: float, radius: float) -> tuple[float, float]:
    """Brightness of a sphere where a ray meets it (the squared cosine between the ray and the
    surface's normal), and the derivative by the radius."""
    towards = camera.distance * camera.focus / math.sqrt(x * x + y * y + camera.focus**2)
    miss = camera.distance**2 - towards**2  # squared distance of the ray from the centre
    if miss >= radius**2:
        return 0.0, 0.0
    return 1.0 - miss / radius**2, 2.0 * miss / radius**3


class Tile(mg.Function):
    """One tile of the picture, as a function of the sphere's radius."""

    @staticmethod
    def forward(
        ctx: Any, radius: mg.Tensor, camera: AnyCamera, left: float, top: float, size: int
    ) -> np.ndarray:
        ctx.camera, ctx.left, ctx.top, ctx.size = camera, left, top, size
        ctx.save_for_backward(radius)
        return march(camera, radius.item(), left, top, size, 0)

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> tuple[Any, None, None, None, None]:
        (radius,) = ctx.saved_tensors
        slopes = march(ctx.camera, radius.item(), ctx.left, ctx.top, ctx.size, 1)
        return (grad.numpy() * slopes).sum(), None, None, None, None


def march(
    camera: AnyCamera, radius: float, left: float, top: float, size: int, which: int
) -> np.ndarray:
    """Brightness (``which`` = 0) or its derivative of the pixels of a tile."""
    step = 2.0 / (TILES * size)
    rows = [
        [shade(camera, left + x * step, top + y * step, radius)[which] for x in range(size)]
        for y in range(size)
    ]
    return np.array(rows)


def picture(radius: mg.Tensor, camera: AnyCamera) -> mg.Tensor:
    """All tiles, as one image."""
    size = WIDTH // TILES
    corners = [-1.0 + 2.0 * k / TILES for k in range(TILES)]
    rows = [
        mg.cat([Tile.apply(radius, camera, left, top, size) for left in corners], dim=1)
        for top in corners
    ]
    return mg.cat(rows, dim=0)


radius = mg.tensor(1.0, dtype=mg.float64, requires_grad=True)
with mg.Engine(mode="process", cpu_workers=2) as engine:
    image = picture(radius, Camera(3.0, 2.0))
    loss = (image - 0.5).square().mean()
    loss.backward()
    assert radius.grad is not None
    print(f"loss {loss.item():.4f}, slope {radius.grad.item():+.4f}")
    explained = engine.explain((picture(radius, Camera(3.0, 2.0)) - 0.5).square().mean())
    places = [node.where for node in explained.nodes if node.name == "TileBackward"]
    print("tiles in workers:", places.count("worker"))

    explained = engine.explain((picture(radius, MovableCamera(3.0, 2.0)) - 0.5).square().mean())
    places = [node.where for node in explained.nodes if node.name == "TileBackward"]
    print("with a camera that can change:", places.count("worker"))

if len(sys.argv) > 2:
    with open(sys.argv[2], "wb") as file:
        file.write(b"P5 %d %d 255\n" % (image.shape[1], image.shape[0]))
        file.write((255 * image.detach().numpy().clip(0, 1)).astype(np.uint8).tobytes())
