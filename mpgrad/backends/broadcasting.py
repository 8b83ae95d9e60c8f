"""The shape that several shapes broadcast to, or which of their lengths do not fit together."""

from __future__ import annotations


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape: lengths are equal or 1, counted from the last dimension.

    Raises:
        RuntimeError: two lengths differ.
    """
    common: list[int] = []
    for shape in shapes:
        lead = len(shape) - len(common)
        common = [1] * lead + common
        for dim, length in enumerate(shape, start=max(-lead, 0)):
            if length != 1:
                if common[dim] not in (1, length):
                    raise RuntimeError(
                        f"The size of tensor a ({common[dim]}) must match the size of tensor b "
                        f"({length}) at non-singleton dimension {dim}"
                    )
                common[dim] = length
    return tuple(common)
