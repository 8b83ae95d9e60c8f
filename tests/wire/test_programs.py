"""Programs and plain values come out as they went in; arrays with the same strides and bits."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpgrad.base.device import CPU, Device
from mpgrad.base.handles import TensorHandle
from mpgrad.engine.packed_arrays import PackedArrays
from mpgrad.errors import ProtocolError
from mpgrad.recording.graph.node import InputMetadata
from mpgrad.shm.arena import client_arena
from mpgrad.wire.programs import (
    NAMED_MAX,
    CaptureRule,
    FunctionRule,
    InlineArray,
    NodeProgram,
    OperatorRule,
    SharedArray,
    TaskProgram,
    Wiring,
    decode_plain,
    decode_program,
    decode_wiring,
    encode_plain,
    encode_program,
    encode_wiring,
    name_of,
)
from mpgrad.workers.worker_memory import WorkerMemory, open_inline

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from([np.dtype("f4"), np.dtype(">i2"), np.dtype("?"), ...])
    | st.builds(slice, *[st.none() | st.integers(-9, 9)] * 3)
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=9)


@pytest.mark.slow
@given(VALUES)
def test_plain_values(value: Any) -> None:
    found = decode_plain(encode_plain(value))
    assert found == value
    assert type(found) is type(value)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=3))
def test_named_plain_values(values: dict[str, Any]) -> None:
    assert decode_plain(encode_plain(values)) == values


def test_floats_keep_their_bits() -> None:
    for value in (float("nan"), float("inf"), -0.0, 5e-324, 1.0):
        found = decode_plain(encode_plain(value))
        assert np.float64(found).tobytes() == np.float64(value).tobytes()


def test_numpy_scalars_become_python_s() -> None:
    assert decode_plain(encode_plain((np.int64(3), np.float32(0.5), np.True_))) == (3, 0.5, True)


@pytest.mark.parametrize("value", [object(), np.ones(2), {1}.union])
def test_what_is_not_plain_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match=f"attribute is a {type(value).__name__}"):
        encode_plain((value,))


def test_programs() -> None:
    shared = SharedArray(TensorHandle(1, 640, 576, 7, (2, 3), (-24, 8), "<f8"))
    inline = InlineArray((2,), (4,), "<f4", 0, b"\x00" * 8)
    program = TaskProgram(
        (
            NodeProgram(
                OperatorRule(
                    "mul", {"a": shared}, {"more": (inline, None)}, encode_plain({"n": 1})
                ),
                b"wiring",
            ),
            NodeProgram(
                FunctionRule("id", inline, (None, shared), b"what", b"ctx", (inline,)), b""
            ),
            NodeProgram(CaptureRule(), b"w"),
        ),
        slots=((0, 0), (2, 1)),
    )
    assert decode_program(encode_program(program)) == program


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\x01", encode_plain({"nodes": 1})])
def test_what_is_no_program(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="malformed task program"):
        decode_program(data)


def test_long_tasks_are_named_by_their_ends() -> None:
    assert name_of(["A", "B"]) == "A -> B"
    nodes = [f"Node{at}" for at in range(1000)]
    assert name_of(nodes[:NAMED_MAX]).count("Node") == NAMED_MAX
    assert name_of(nodes).startswith("Node0 -> Node1 -> ")
    assert "(992 more)" in name_of(nodes)
    assert name_of(nodes).endswith("-> Node999")


def test_wirings() -> None:
    meta = InputMetadata((2, 3), np.dtype("<f4"))
    there = meta._replace(device=Device("cuda:1"))
    wiring = Wiring("MulBackward0", (meta,), (meta, None, there), ((1, 0), 2, None), ((0, 1),))
    decoded = decode_wiring(encode_wiring(wiring))
    assert decoded == wiring
    assert decoded.needs == (True, True, False)
    assert decoded.inputs[0].device is CPU  # not only equal to it
    with pytest.raises(ProtocolError, match="malformed wiring"):
        decode_wiring(b"\xc1")


# ---------------------------------------------------------------------- arrays

VIEWS: dict[str, Any] = {
    "whole": lambda a: a,
    "transposed": lambda a: a.T,
    "backwards": lambda a: a[::-1],
    "both backwards": lambda a: a[::-1, ::-1],
    "every other": lambda a: a[::2, 1::3],
    "column": lambda a: a[:, 2],
    "broadcast": lambda a: np.broadcast_to(a[:1], (5, a.shape[1])),
    "one element": lambda a: a[1:2, 3:4],
    "empty": lambda a: a[:0],
    "0-d": lambda a: a[2, 3, ...],
    "new axis": lambda a: a[:, None, ::-1],
}


@pytest.fixture(scope="module")
def memory() -> WorkerMemory:
    descriptor = client_arena().segment.fd
    return WorkerMemory(os.dup(descriptor), os.dup(descriptor))


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("shape", [(6, 7), (60, 170)], ids=["inline", "in a block"])
@pytest.mark.parametrize("place", ["heap", "arena"])
def test_arrays(memory: WorkerMemory, name: str, shape: tuple[int, int], place: str) -> None:
    whole = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    if place == "arena":
        block = client_arena().empty(shape, np.float32)
        block[...] = whole
        whole = block
    view = VIEWS[name](whole)
    handover = PackedArrays()
    opened = memory.open_packed(handover.array(view))
    assert (opened.shape, opened.dtype) == (view.shape, view.dtype)
    assert opened.strides == view.strides
    assert opened.tobytes() == view.tobytes()
    assert not opened.flags.writeable
    assert handover.copied_bytes == (0 if place == "arena" and view.size else view.nbytes)
    del opened
    handover.close()


def test_gaps_travel_too(memory: WorkerMemory) -> None:
    # Only then are the strides the same, and with them the order in which BLAS adds.
    whole = np.arange(20_000, dtype=np.float64).reshape(100, 200)
    packed = PackedArrays().array(whole[:, ::40])
    assert isinstance(packed, SharedArray)
    assert packed.handle.strides == (1600, 320)


def test_the_same_array_is_packed_once() -> None:
    array = np.ones((300, 300))
    handover = PackedArrays()
    assert handover.array(array) is handover.array(array)
    assert handover.copied_bytes == handover.handed_bytes == array.nbytes


@pytest.mark.parametrize(
    "packed",
    [
        InlineArray((4,), (4,), "<f4", 0, b"\x00" * 8),
        InlineArray((2,), (4,), "<f4", 4, b"\x00" * 8),
        InlineArray((2,), (-4,), "<f4", 0, b"\x00" * 8),
        InlineArray((2,), (4, 4), "<f4", 0, b"\x00" * 8),
        InlineArray((2,), (4,), "nonsense", 0, b"\x00" * 8),
        InlineArray((2,), (4,), "<f4", -4, b"\x00" * 8),
        InlineArray((1,), (8,), "O", 0, b"\x00" * 8),
    ],
    ids=["too long", "too far", "before its start", "strides", "dtype", "negative", "objects"],
)
def test_an_inline_array_that_leaves_its_bytes(packed: InlineArray) -> None:
    with pytest.raises(ProtocolError, match="does not fit"):
        open_inline(packed)


def test_a_stale_handle_is_refused(memory: WorkerMemory) -> None:
    array = client_arena().empty((100, 100), np.float64)
    packed = PackedArrays().array(array)
    del array
    fresh = client_arena().empty((100, 100), np.float64)  # the same block, in its next use
    with pytest.raises(ProtocolError):
        memory.open_packed(packed)
    del fresh


def test_no_byte_beyond_the_array_is_read() -> None:
    # A view at the very end of its memory: one byte more would not exist.
    buffer = ctypes.create_string_buffer(64)
    array = np.frombuffer(buffer, np.float32)[::-3]
    packed = PackedArrays().array(array)
    assert isinstance(packed, InlineArray)
    assert len(packed.data) == (len(array) - 1) * 12 + 4
