"""What a Function's backward reads beside its arguments: wherever it runs, it is what the caller
has now."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.semantics.functions import define, double
from tests.semantics.paired import leaf, paired

# ---------------------------------------------------------------------- run_on = "worker"

WEIGHTS = np.ones(3)
LARGE = np.ones(20_000)
LIST, DICTIONARY, OBJECT = [1.0], {"key": 1.0}, SimpleNamespace(value=1.0)


def weighted(ctx: Any, grad: Any) -> Any:
    other = 100 * LIST[0] + 1000 * DICTIONARY["key"] + 10_000 * OBJECT.value
    return grad * float(WEIGHTS[0] + 10 * LARGE[-1] + other)


@paired()
def test_what_run_on_worker_reads_is_what_it_is_now(lib: Any) -> Any:
    custom = define(lib, double, weighted, run_on="worker")
    WEIGHTS[:], LARGE[:], LIST[0], DICTIONARY["key"], OBJECT.value = 1.0, 1.0, 1.0, 1.0, 1.0
    changes = [
        lambda: None,
        lambda: np.put(WEIGHTS, 0, 2.0),
        lambda: np.put(LARGE, -1, 2.0),
        lambda: LIST.__setitem__(0, 2.0),
        lambda: DICTIONARY.update(key=2.0),
        lambda: vars(OBJECT).update(value=2.0),
        lambda: None,
    ]
    seen = []
    for change in changes:
        change()
        x = leaf(lib, 2)
        custom.apply(x).sum().backward()
        seen.append(x.grad[0].item())
    assert seen == [11111, 11112, 11122, 11222, 12222, 22222, 22222]
    return seen
