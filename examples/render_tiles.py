"""A picture in 16 tiles: each tile is ray-marched in Python, and so is its derivative.

Forward finds both at once: the slopes stay on ctx, in the worker that has made them. The scene is a
dataclass; it travels to the workers.

python examples/render_tiles.py [width in pixels] [file.ppm]
"""

import math
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import mpgrad as mg

WIDTH = int(sys.argv[1]) if len(sys.argv) > 1 else 512
TILES = 4  # in each direction


@dataclass(frozen=True)
class Camera:
    """Where the eye is, and how far the picture plane."""

    distance: float
    focus: float


def shade(camera: Camera, x: float, y: float, radius: float) -> tuple[float, float]:
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
        ctx: Any, radius: mg.Tensor, camera: Camera, left: float, top: float, size: int
    ) -> np.ndarray:
        brightness, ctx.slopes = march(camera, radius.item(), left, top, size)
        return brightness

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> tuple[Any, None, None, None, None]:
        return (grad.numpy() * ctx.slopes).sum(), None, None, None, None


def march(
    camera: Camera, radius: float, left: float, top: float, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Brightness of the pixels of a tile, and its derivatives."""
    step = 2.0 / (TILES * size)
    pixels = [
        [shade(camera, left + x * step, top + y * step, radius) for x in range(size)]
        for y in range(size)
    ]
    brightness, slopes = np.moveaxis(np.array(pixels), -1, 0)
    return brightness, slopes


def picture(radius: mg.Tensor, camera: Camera) -> mg.Tensor:
    """All tiles, as one image."""
    corners = [-1.0 + 2.0 * k / TILES for k in range(TILES)]
    count = TILES * TILES
    tiles = Tile.map(
        [radius] * count,
        [camera] * count,
        corners * TILES,
        [top for top in corners for _ in corners],
        [WIDTH // TILES] * count,
    )
    rows = [mg.cat(tiles[at : at + TILES], dim=1) for at in range(0, count, TILES)]
    return mg.cat(rows, dim=0)


radius = mg.tensor(1.0, dtype=mg.float64, requires_grad=True)
camera = Camera(3.0, 2.0)


def step() -> mg.Tensor:
    """The image, and its loss's slope in ``radius.grad``."""
    radius.grad = None
    image = picture(radius, camera)
    (image - 0.5).square().mean().backward()
    return image


def milliseconds() -> float:
    """Of one step, forward and backward; the best of three."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return min(times) * 1e3


with mg.Engine(mode="local"):
    print(f"one step in this process: {milliseconds():.0f} ms")
with mg.Engine(mode="process") as engine:
    print(f"one step in workers:      {milliseconds():.0f} ms")
    image = step()
    assert radius.grad is not None
    loss = (image - 0.5).square().mean().item()
    print(f"loss {loss:.4f}, slope {radius.grad.item():+.4f}")
    print("tasks run by:", ", ".join(engine.statistics().tasks))

if len(sys.argv) > 2:
    with open(sys.argv[2], "wb") as file:
        file.write(b"P5 %d %d 255\n" % (image.shape[1], image.shape[0]))
        file.write((255 * image.detach().numpy().clip(0, 1)).astype(np.uint8).tobytes())
