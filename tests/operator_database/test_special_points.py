"""Every operator gives at special points what PyTorch gave there, or there is a reason."""

from __future__ import annotations

import pytest

import mpgrad as mg
from tests.operator_database import recorded, special_points

CALLS, COUNTS = special_points.read()


@pytest.mark.parametrize("name", CALLS)
def test_values_and_derivatives_at_special_points(name: str) -> None:
    found = special_points.differences(mg, name, recorded.unpacked(CALLS[name]))
    assert [
        f"{thing} at {point}: {text}"
        for point, thing, text in found
        if text and not special_points.reason(name, thing, point)
    ] == []


def test_the_points_that_were_tried() -> None:
    """Of most operators all three things, at all points."""
    assert len(CALLS) > 400
    assert {thing: count["tried"] > 5_000 for thing, count in COUNTS.items()} == dict.fromkeys(
        special_points.THINGS, True
    )
    assert all(count["right"] > 0.9 * count["tried"] for count in COUNTS.values())


def test_a_difference_without_a_reason_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(special_points, "reasons", dict)
    name = "nn.functional.elu"
    found = list(special_points.differences(mg, name, recorded.unpacked(CALLS[name])))
    assert any(text and not special_points.reason(name, *where) for *where, text in found)
