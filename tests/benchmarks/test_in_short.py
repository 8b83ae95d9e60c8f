"""The sentence below each table."""

from __future__ import annotations

import pytest

from benchmarks.in_short import in_short


@pytest.mark.parametrize(
    ("medians", "said"),
    [
        ({"mpgrad local": 4.0, "mpgrad auto": 2.0, "torch": 3.0, "jax": 5.0},
         "*mpgrad auto* is fastest. The fastest peer, *torch*, takes 1.5 times as long."),
        ({"mpgrad process": 3.0, "torch": 2.0, "the loops alone": 1.0},
         "*torch* is fastest. mpgrad's fastest mode, *mpgrad process*, takes 1.5 times as long."),
        ({"mpgrad process": 2.05, "torch": 2.0},
         "mpgrad's fastest mode, *mpgrad process*, takes as long as the fastest peer, *torch*."),
        ({"mpgrad process": 2.0, "torch": 4.0, "two-process limit": 1.9},
         "*mpgrad process* is fastest. The fastest peer, *torch*, takes 2 times as long. Two bare "
         "processes take 0.95 of mpgrad's time."),
    ],
)  # fmt: skip
def test_what_is_said(medians: dict[str, float], said: str) -> None:
    assert in_short(medians) == said


def test_without_a_peer_nothing_is_said() -> None:
    assert in_short({"mpgrad local": 1.0, "the loops alone": 1.0}) == ""
