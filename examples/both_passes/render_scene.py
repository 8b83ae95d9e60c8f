"""Tiles of a renderer: rays are marched to a soft scene, and the colours of its spheres are fitted.

python examples/both_passes/render_scene.py [width in pixels]
"""

import sys
from dataclasses import dataclass

import mpgrad as mg

WIDTH = int(sys.argv[1]) if len(sys.argv) > 1 else 128
TILES, STEPS = 4, 24


@dataclass
class Scene:
    """Spheres: where they are, how large, and how bright."""

    centres: mg.Tensor
    radii: mg.Tensor
    brightness: mg.Tensor

    def parameters(self) -> list[mg.Tensor]:
        return [self.centres, self.radii, self.brightness]


@dataclass(frozen=True)
class Tile:
    """A square of the picture."""

    left: float
    top: float
    size: float
    pixels: int

    def rays(self) -> mg.Tensor:
        at = (mg.arange(self.pixels, dtype=mg.float64) + 0.5) * (self.size / self.pixels)
        x = (at + self.left).reshape(1, -1).expand(self.pixels, -1)
        y = (at + self.top).reshape(-1, 1).expand(-1, self.pixels)
        return mg.stack([x, y, mg.full_like(x, 2.0)], dim=-1)


def render(tile: Tile, scene: Scene) -> mg.Tensor:
    """The brightness of each pixel: what lies nearer hides what lies behind."""
    rays = tile.rays()
    picture = mg.zeros(tile.pixels, tile.pixels, dtype=mg.float64)
    passed = mg.ones_like(picture)
    for k in range(1, STEPS + 1):
        points = rays * (0.1 * k)
        away = (points.unsqueeze(-2) - scene.centres).square().sum(-1).sqrt() - scene.radii
        density = mg.sigmoid(-20.0 * away)
        absorbed = 1.0 - mg.exp(-density.sum(-1))
        picture = picture + passed * absorbed * (density * scene.brightness).mean(-1)
        passed = passed * (1.0 - absorbed)
    return picture


mg.manual_seed(0)
scene = Scene(
    centres=(mg.rand(5, 3, dtype=mg.float64) * 2 - mg.tensor([1.0, 1.0, -2.0])).requires_grad_(),
    radii=(0.3 + 0.3 * mg.rand(5, dtype=mg.float64)).requires_grad_(),
    brightness=mg.ones(5, dtype=mg.float64, requires_grad=True),
)
size = 2.0 / TILES
tiles = [
    Tile(-1.0 + column * size, -1.0 + row * size, size, WIDTH // TILES)
    for row in range(TILES)
    for column in range(TILES)
]
pictures = mg.parallel_map(render, tiles, shared=(scene,))
loss = sum((picture - 0.2).square().sum() for picture in pictures) / WIDTH**2
loss.backward()
print(f"loss {loss.item():.12g}")
for name, parameter in zip(["centres", "radii", "brightness"], scene.parameters(), strict=True):
    print(f"slope of {name}: {parameter.grad.norm().item():.12g}")
