"""``Engine(check="bytes")``: bytes of shared memory that change after they are published."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.base.handles import Block
from mpgrad.engine.session_pool import SessionPool
from mpgrad.errors import BytesCorrupted
from mpgrad.shm.mapped_arena import _LAYOUT, ForeignArena
from tests.leftovers import wait_until
from tests.process.conftest import check_usable

pytestmark = pytest.mark.process

#: Elements of a gradient that lies in a block: its digest has rows and columns.
MANY = 9000
#: The gradient that is damaged.
MARK = 7.25


@pytest.fixture(scope="module")
def process_engine() -> Iterator[mg.Engine]:
    with mg.Engine("process", cpu_workers=2, check="bytes") as engine:
        yield engine


def arena_of(engine: mg.Engine) -> ForeignArena:
    return engine._execution.sessions.coordinator.arena


def flip(arena: ForeignArena, offset: int) -> None:
    """Change one bit of shared memory."""
    arena.segment.buffer[offset] ^= 1


def flip_mark(engine: mg.Engine) -> None:
    """Change one bit of the only block that is full of ``MARK``."""
    arena = arena_of(engine)
    pattern = np.full(MANY, MARK).tobytes()
    found = bytes(arena.segment.buffer[: 8 << 20]).find(pattern)
    assert found > 0
    flip(arena, found + 8 * (MANY // 2) + 3)


class Marks(mg.Function):
    """The gradient of its large argument is full of MARK; that of the small one is 1."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, large: mg.Tensor, small: mg.Tensor) -> Any:
        ctx.nbytes = large.numel()
        return small.detach() * 1.0

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return mg.full((ctx.nbytes,), MARK, dtype=mg.float64), grad


class Reads(mg.Function):
    """Passes a copy of its gradient on."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.detach() * 1.0

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * 1.0


class Guessed(Reads):
    run_on = None


def leaf() -> mg.Tensor:
    return mg.zeros(MANY, dtype=mg.float64, requires_grad=True)


def damaged_on_the_way(
    engine: mg.Engine, x: mg.Tensor, read: type[mg.Function], hook: Callable[..., Any] | None = None
) -> mg.Tensor:
    """A loss. The gradient that ``read`` gets lies in a block when a hook damages it."""
    large = read.apply(x)
    if hook is not None:
        large.register_hook(hook)
    small = large.sum()
    # It runs in this process when Marks has published, and before ``read`` gets the rest.
    small.register_hook(lambda grad: flip_mark(engine))
    return Marks.apply(large, small)


@pytest.mark.parametrize("read", [Reads, Guessed])
def test_a_worker_that_reads_them_says_so(engine: mg.Engine, read: type[mg.Function]) -> None:
    x = leaf()
    with pytest.raises(BytesCorrupted, match=r"72,000 bytes at offset \d+ of engine arena") as told:
        damaged_on_the_way(engine, x, read).backward()
    notes = " ".join(told.value.__notes__)
    assert f"it is input 0 of {read.__name__}Backward, of shape [{MANY}]" in notes
    assert "on worker " in notes
    assert x.grad is None
    check_usable()


def test_a_hook_that_gets_them_is_not_called(engine: mg.Engine) -> None:
    x, seen = leaf(), list[Any]()
    with pytest.raises(BytesCorrupted) as told:
        damaged_on_the_way(engine, x, Reads, seen.append).backward()
    assert any("it is input 0 of " in note for note in told.value.__notes__)
    assert seen == []
    assert x.grad is None


@pytest.fixture
def damaged_results(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The last block of each set of results is changed before this process reads them, as often as
    the list has an element, the number of a byte."""
    bytes_of_blocks: list[int] = []
    right = SessionPool.require_intact

    def wrong(self: SessionPool, session: Any, refs: Any, name: Any) -> None:
        blocks = [ref for ref in refs if isinstance(ref, Block)]
        if bytes_of_blocks and blocks:
            flip(session.coordinator.arena, blocks[-1].offset + bytes_of_blocks.pop())
        right(self, session, refs, name)

    monkeypatch.setattr(SessionPool, "require_intact", wrong)
    return bytes_of_blocks


@pytest.mark.parametrize("byte", [0, 8 * MANY - 1])
def test_gradients_that_have_changed_are_not_committed(
    engine: mg.Engine, damaged_results: list[int], byte: int
) -> None:
    x, y = leaf(), leaf()
    blocks = engine.statistics().engine_arena.live_blocks
    damaged_results.append(byte)
    with pytest.raises(BytesCorrupted, match="native code") as told:
        (Reads.apply(x) * 2.0 + Reads.apply(y) * 3.0).sum().backward()
    what = f"it is the gradient of shape [{MANY}] for AccumulateGrad, which this process reads"
    assert told.value.__notes__ == [what]
    assert x.grad is None
    assert y.grad is None
    (Reads.apply(x) * 2.0 + Reads.apply(y) * 3.0).sum().backward()
    assert x.grad.tolist() == [2.0] * MANY
    del x, y, told  # its traceback holds the graph
    for _ in range(2):  # blocks that nobody holds are told with the next graph
        check_usable()
    assert engine.statistics().engine_arena.live_blocks == blocks


def test_results_of_a_map_and_of_a_fork(engine: mg.Engine, damaged_results: list[int]) -> None:
    x = leaf()
    for _ in range(2):  # from the second map on, results get blocks
        mg.parallel_map(twice, [x, x, x])
    damaged_results.append(100)
    with pytest.raises(BytesCorrupted) as told:
        mg.parallel_map(twice, [x, x, x])
    assert "it is the result of twice of item 2, which" in told.value.__notes__[0]
    damaged_results.append(100)
    with pytest.raises(BytesCorrupted) as told:
        mg.wait(mg.fork(twice, x))
    assert "it is the result of twice of item 0, which" in told.value.__notes__[0]
    assert damaged_results == []
    results = mg.parallel_map(twice, [x, x, x])
    sum([one.sum() for one in results]).backward()
    assert x.grad.tolist() == [6.0] * MANY
    del results, told  # its traceback holds the arguments
    check_usable()
    assert wait_until(lambda: engine.statistics().branches == 0)


def twice(x: mg.Tensor) -> mg.Tensor:
    return x * 2.0


def test_without_it_no_block_has_a_checksum() -> None:
    for check, has_one in (("sample", False), ("bytes", True)):
        with mg.Engine("process", cpu_workers=1, check=check) as engine:
            x = leaf()
            Reads.apply(x).sum().backward()
            arena, data = arena_of(engine), x.grad.numpy()
            place = arena.locate(data)
            assert place is not None
            _, checksum, *_ = _LAYOUT.unpack_from(arena.segment.buffer, place[1] - 64)
            assert (checksum != 0) == has_one
            # The gradient is the user's now, who may change it, and hand it to workers again.
            x.grad += 1.0
            (Reads.apply(x) * x.grad).sum().backward()
            assert x.grad.tolist() == [4.0] * MANY
