"""Handles: references into shared arenas that are sent between processes instead of bytes.

A handle says where bytes lie; it never holds them and never opens them (``shm`` does).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, TypeGuard

#: Arena numbers. The client's arena holds its tensors and lives as long as any of them. The
#: engine's arena holds the outputs of workers and lives as long as the engine's last reader.
CLIENT_ARENA = 0
ENGINE_ARENA = 1
#: The memory of a GPU that the client exports: this plus the GPU's number.
CLIENT_DEVICE_ARENA = 2
#: The memory of a GPU that a worker exports: this plus a number for each such process.
WORKER_DEVICE_ARENA = 1 << 10

#: Gradients of at most this many bytes travel inside the message. To allot a block, open it twice
#: and free it costs more than a few copies.
INLINE_LIMIT_BYTES = 4096
#: As soon as what a task or a graph gives inside messages exceeds so many bytes, a message goes.
MESSAGE_PART_BYTES = 4 << 20


class Block(NamedTuple):
    """One allotted range of an arena.

    ``generation`` differs between any two uses of the same offset, and is also in the 64-byte
    header before ``offset``, so that a stale reference is detected and never read.
    """

    arena: int
    offset: int
    nbytes: int
    generation: int


class TensorHandle(NamedTuple):
    """A strided array inside a block (``offset`` and ``strides`` in bytes).

    ``block_offset`` is the start of the block, whose header contains ``generation``.
    """

    arena: int
    offset: int
    block_offset: int
    generation: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


#: A gradient in a message: a block, the bytes themselves if they are few, or undefined. Its shape
#: and dtype are those of the input that it flows into, which the receiver knows.
GradientRef: TypeAlias = Block | bytes | None


def is_counted(ref: GradientRef) -> TypeGuard[Block]:
    """Whether ``ref`` is a block with counted holders, which a block of the client's is not."""
    return isinstance(ref, Block) and (
        ref.arena == ENGINE_ARENA or ref.arena >= WORKER_DEVICE_ARENA
    )
