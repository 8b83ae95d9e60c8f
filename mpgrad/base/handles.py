"""What travels between processes instead of bytes: references into shared arenas.

A handle says where bytes lie; it never holds them and never opens them (``shm`` does).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, TypeGuard

#: Arena numbers. The client's arena holds its tensors and lives as long as any of them; the
#: engine's arena holds what workers produce and lives as long as the engine's last reader.
CLIENT_ARENA = 0
ENGINE_ARENA = 1
#: Memory of a GPU that the client exports: this plus the GPU's number.
CLIENT_DEVICE_ARENA = 2
#: Memory of a GPU that a worker exports: from here on, a number for each process that has any.
WORKER_DEVICE_ARENA = 1 << 10

#: Gradients of at most this many bytes travel inside the message: a block would have to be
#: allotted, opened twice and given back, which costs more than to copy them a few times.
INLINE_LIMIT_BYTES = 4096


class Block(NamedTuple):
    """One allotted stretch of an arena.

    ``generation`` differs between any two uses of the same offset, and stands in the 64-byte
    header before ``offset``, so that a stale reference is found out and never read.
    """

    arena: int
    offset: int
    nbytes: int
    generation: int


class TensorHandle(NamedTuple):
    """A strided array inside a block (``offset`` and ``strides`` in bytes).

    ``block_offset`` is where the block starts, whose header holds ``generation``.
    """

    arena: int
    offset: int
    block_offset: int
    generation: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


#: A gradient on its way: a block, the bytes themselves where they are few, or undefined.
#: Its shape and dtype are those of the input that it flows into, which the receiver knows.
GradientRef: TypeAlias = Block | bytes | None


def is_counted(ref: GradientRef) -> TypeGuard[Block]:
    """Whether ``ref`` is a block whose holders the coordinator counts: not one of the client's."""
    return isinstance(ref, Block) and (
        ref.arena == ENGINE_ARENA or ref.arena >= WORKER_DEVICE_ARENA
    )
