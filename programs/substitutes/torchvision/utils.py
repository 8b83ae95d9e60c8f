"""Pictures, which are computed and not written."""

from __future__ import annotations

from typing import Any

import torch


def make_grid(tensor: Any, *_args: Any, **_options: Any) -> Any:
    """All images side by side, as (channels, height, width)."""
    images = torch.stack(list(tensor)) if isinstance(tensor, (list, tuple)) else tensor
    return torch.cat([image.expand(3, -1, -1) for image in images], 2)


def save_image(tensor: Any, *_args: Any, **_options: Any) -> None:
    """Does not write the file."""
    make_grid(tensor)
