"""NumPy's numbers among the arguments give what Python's do, of the same dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from tests.operator_database import database, recorded
from tests.operator_database.comparison import arrays_of, attempt
from tests.operator_database.database import plain_function

_, CALLS = recorded.read()
#: They take Python's integers only, as PyTorch's do.
REFUSED = {"broadcast_shapes", "split", "tensordot"}


def _with_numpy(value: Any, kinds: dict[type, type]) -> Any:
    if type(value) in kinds:
        return kinds[type(value)](value)
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_with_numpy(item, kinds) for item in value)
    if type(value) is dict:
        return {key: _with_numpy(item, kinds) for key, item in value.items()}
    return value


def _outcome(name: str, call: dict[str, Any], kinds: dict[type, type]) -> str:
    args, kwargs = recorded.for_library((call["args"], call["kwargs"]), mg)
    args, kwargs = _with_numpy(args, kinds), _with_numpy(kwargs, kinds)
    mg.manual_seed(0)
    found = attempt(lambda: arrays_of(plain_function(mg, name)(*args, **kwargs)))
    return type(found).__name__ if isinstance(found, Exception) else _described(found)


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, list | tuple):
        return str([_described(item) for item in value])
    return str(value)


@pytest.mark.parametrize(
    "kinds", [{float: np.float64}, {int: np.int64}], ids=["floats", "integers"]
)
def test_numpys_numbers_give_what_pythons_do(kinds: dict[type, type]) -> None:
    tried, wrong = 0, []
    for name, packed in CALLS.items():
        for call in recorded.unpacked(packed):
            given = (call["args"], call["kwargs"])
            if name in REFUSED or database.is_random(name, call["kwargs"]):
                continue
            if repr(_with_numpy(given, kinds)) == repr(given):
                continue
            tried += 1
            expected = _outcome(name, call, {})
            if expected != "TypeError" and _outcome(name, call, kinds) != expected:
                wrong.append((name, given))
    assert wrong == []
    assert tried > 100
