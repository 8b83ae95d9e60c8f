"""What is recorded of torch comes back with every bit, and says no if something else comes out."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.semantics.paired import compare, seen
from tests.torch_outcomes import Seen, decode, encode


def recorded(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value))))


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "complex64", "complex128", "int64", "bool"]
)
def test_arrays_come_back_with_every_bit(dtype: str) -> None:
    drawn = np.random.default_rng(0).standard_normal((3, 4)) * 10.0 ** np.arange(-2, 2)
    edges = np.array([[0.0, -0.0, np.inf, -np.inf]])
    array = np.concatenate([drawn, edges if dtype[0] in "fc" else drawn[:1]]).astype(dtype)
    again = recorded(array)
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    assert again.tobytes() == array.tobytes()
    assert recorded(array[:0]).shape == (0, 4)


def test_plain_values_come_back() -> None:
    values = [None, True, 7, 0.1, float("inf"), 1 - 2j, "text", {"a": [1, {}], 2: []}]
    assert recorded(values) == values
    assert [type(value) for value in recorded(values)] == [type(value) for value in values]
    assert np.isnan(recorded(float("nan")))


def test_an_error_is_its_type_and_its_first_words_a_note() -> None:
    again = recorded(seen(ValueError("too long " * 20), exact=False))
    assert (again.kind, again.text, again.note[:8]) == ("error", "ValueError", "too long")
    compare(seen(ValueError("other words"), exact=False), again, 1e-5, 0.0)
    with pytest.raises(AssertionError):
        compare(seen(TypeError("too long"), exact=False), again, 1e-5, 0.0)


@pytest.mark.parametrize("size", [60, 6000])
def test_another_value_is_noticed(size: int) -> None:
    array = np.random.default_rng(0).standard_normal((size // 3, 3))
    again = recorded(Seen("array", f"float64 {array.shape}", array))
    compare(Seen("array", f"float64 {array.shape}", array), again, 1e-12, 0.0)
    array[0, 0] += 1e-9
    with pytest.raises(AssertionError, match="Not equal"):
        compare(Seen("array", f"float64 {array.shape}", array), again, 1e-12, 0.0)
    with pytest.raises(AssertionError):
        compare(Seen("array", f"float32 {array.shape}", array), again, 1e-5, 1e-5)


def test_the_step_through_a_large_array_meets_all_its_columns() -> None:
    array = np.arange(20_000.0).reshape(20, 10, 100)
    again = recorded(Seen("array", f"float64 {array.shape}", array))
    assert again.values.size <= 200
    assert {int(value) % 10 for value in again.values} == set(range(10))


def test_what_has_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot hold set"):
        encode([{1, 2}])
