"""Every message survives its frame; everything else is a ProtocolError and nothing worse."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpgrad.base.handles import Block
from mpgrad.errors import ProtocolError
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.plan_tables import NodeTaskSpec, OutputSpec
from mpgrad.wire import schema
from mpgrad.wire.schema import FROM_CLIENT, FROM_WORKER, MESSAGES, Hello, Processes, decode, encode

BLOCK = Block(1, 64, 4096, 7)
TASK = NodeTaskSpec(
    False,
    12.5,
    3,
    2,
    (1, 1),
    (OutputSpec(4096, 1, 0, 2), OutputSpec(0, -1, 0, 0)),
    (4,),
    payload=(64, 9),
    program=b"\x93",
)
SAMPLES = [
    Hello("w0.1", b"\x00token", 1),
    Processes("c1.0", (12, 13), 1, (0, 1, 2, 3, 4)),
    ev.GraphSubmitted("c1.0", 1, 0, (TASK, TASK), ((0, 0, 0, BLOCK), (1, 0, 0, None)), 2, False),
    ev.GraphExtended("c1.0", 1, (TASK,), True),
    ev.GraphCancelled("c1.0", 1),
    ev.BlocksReleased("w0.1", (BLOCK, BLOCK)),
    ev.NodeTaskDone("w0.1", 1, 2, 3, (BLOCK, b"\xff\x00", None), (BLOCK,), 17, 4096),
    ev.NodeTaskFailed("w0.1", 1, 2, 3, b"\x80pickle", ()),
    ev.NodeTaskDropped("w0.1", 1, 2, 3),
    ev.OutputEmitted("w0.1", 1, "stdout", b"text"),
    do.DispatchNodeTask(
        "w0.1", 1, 2, 3, 1, 0, (64, 9), ((BLOCK, b"inline"), ()), (BLOCK, None), program=b"\x93"
    ),
    do.CancelGraph("w0.1", 1),
    do.ShutDown("w0.1"),
    do.DeliverCaptures("c1.0", 1, ((0, b"one"), (3, b""))),
    ev.GraphAwaited("c1.0", 1),
    do.GraphForgotten("c1.0", 1),
    do.GraphGoesOn("c1.0", 1),
    do.CompleteGraph(
        "c1.0",
        1,
        (BLOCK, b"", None),
        (True, False, False),
        ((0, 1, 250, 0, None), (1, 2, 40, 8, b"times")),
    ),
    do.FailGraph("c1.0", 1, "error", -1, b"text"),
    do.ForwardOutput("c1.0", 1, "stderr", b"text"),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_went(message: object) -> None:
    back = decode(encode(message))
    assert type(back) is type(message)
    assert back == message
    assert decode(memoryview(encode(message))) == message


def test_the_kinds_inside_a_message_are_kept() -> None:
    done = decode(encode(SAMPLES[6]))
    assert [type(ref) for ref in done.outputs] == [Block, bytes, type(None)]


def test_each_side_says_only_what_it_may() -> None:
    assert decode(encode(SAMPLES[2]), FROM_CLIENT) == SAMPLES[2]
    with pytest.raises(ProtocolError, match="kind 10 is not expected"):
        decode(encode(SAMPLES[2]), FROM_WORKER)
    with pytest.raises(ProtocolError, match="kind 30 is not expected"):
        decode(encode(SAMPLES[10]), FROM_CLIENT)


def test_messages_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = encode(SAMPLES[0])
    monkeypatch.setattr(schema, "MESSAGE_BYTES_MAX", len(frame) - 1)
    with pytest.raises(ProtocolError, match="a Hello of"):
        encode(SAMPLES[0])
    with pytest.raises(ProtocolError, match="a frame of"):
        decode(frame)


def test_wrong_fields_are_found() -> None:
    def frame(*fields: object) -> bytes:
        return bytes([12]) + msgspec.msgpack.encode(fields)

    assert decode(frame("c1.0", 1)) == ev.GraphCancelled("c1.0", 1)
    for wrong in (("c1.0",), ("c1.0", "1"), (1, 1), ("c1.0", 1.5), ("c1.0", None)):
        with pytest.raises(ProtocolError, match="malformed GraphCancelled"):
            decode(frame(*wrong))


def decodes_or_refuses(frame: bytes) -> None:
    try:
        message = decode(frame)
    except ProtocolError:
        return
    assert type(message) in MESSAGES.values()


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_random_bytes(frame: bytes) -> None:
    decodes_or_refuses(frame)


@given(st.sampled_from(sorted(MESSAGES)), st.binary(max_size=100))
@settings(max_examples=300)
def test_random_bytes_after_a_known_kind(kind: int, rest: bytes) -> None:
    decodes_or_refuses(bytes([kind]) + rest)


@given(st.sampled_from(SAMPLES), st.data())
@settings(max_examples=300)
def test_damaged_messages(message: object, data: st.DataObject) -> None:
    frame = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    decodes_or_refuses(bytes(frame[: data.draw(st.integers(0, len(frame)))]))


def test_deep_nesting_is_refused() -> None:
    decodes_or_refuses(bytes([20]) + b"\x91" * 100_000)
