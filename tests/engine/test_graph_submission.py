"""What a submission keeps for later graphs is bounded."""

from __future__ import annotations

import pytest

from mpgrad.calls.custom_functions.run_on import SerializedCode
from mpgrad.engine import graph_submission


def test_code_that_is_packed_again_and_again_does_not_fill_the_arena(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graph_submission, "_code_arrays", {})
    monkeypatch.setattr(graph_submission, "CODE_BYTES_MAX", 1000)
    for number in range(50):
        code = SerializedCode(f"version {number}", bytes([number]) * 400)
        assert bytes(graph_submission._bytes_of(code)) == code.blob
    assert list(graph_submission._code_arrays) == ["version 48", "version 49"]
    assert bytes(graph_submission._bytes_of(SerializedCode("large", bytes(2000)))) == bytes(2000)
