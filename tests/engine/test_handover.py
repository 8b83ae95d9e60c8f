"""What a handover keeps for later graphs is bounded."""

from __future__ import annotations

import pytest

from mpgrad.calls.functions.decision import ShippedCode
from mpgrad.engine import handover


def test_code_that_is_packed_again_and_again_does_not_fill_the_arena(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handover, "_code_arrays", {})
    monkeypatch.setattr(handover, "CODE_BYTES_MAX", 1000)
    for number in range(50):
        code = ShippedCode(f"version {number}", bytes([number]) * 400)
        assert bytes(handover._bytes_of(code)) == code.blob
    assert list(handover._code_arrays) == ["version 48", "version 49"]
    assert bytes(handover._bytes_of(ShippedCode("large", bytes(2000)))) == bytes(2000)
