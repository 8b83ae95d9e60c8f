"""Texts with lone surrogates in messages."""

from __future__ import annotations

import os

import pytest

from mpgrad.distributed.carrier.messages import (
    Disagreement,
    Loss,
    RpcReady,
    decode_head,
    encode_head,
)
from mpgrad.wire.packed_texts import pack_text, unpack_text, without_surrogates

#: As Python shows a file name that is not UTF-8.
NAME = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize(
    "text", ["", "café", NAME, "\ud800 \udfff", "\N{GRINNING FACE}"], ids=ascii
)
def test_every_text_comes_back(text: str) -> None:
    assert unpack_text(pack_text(text)) == text


def test_without_surrogates_it_can_be_shown_anywhere() -> None:
    assert without_surrogates(f"é {NAME}") == r"é caf\udce9"


def test_hosts_tell_each_other_causes_with_such_names() -> None:
    assert decode_head(encode_head(Loss(1, NAME))) == Loss(1, r"caf\udce9")
    assert decode_head(encode_head(Disagreement(2, NAME))) == Disagreement(2, r"caf\udce9")
    ready = RpcReady(pack_text(NAME), "main", 3)
    assert decode_head(encode_head(ready)) == ready
