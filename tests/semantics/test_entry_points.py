"""Group A: what ``backward()`` and ``grad()`` take and give."""

from __future__ import annotations

from typing import Any

from tests.semantics.paired import error_of, leaf, paired


@paired("A1", "A9")
def test_a_root_listed_twice_counts_twice(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = (x * x).sum()
    result = lib.autograd.backward([y, y])
    return x.grad, result


@paired("A4")
def test_a_seed_has_the_shape_of_its_root(lib: Any) -> Any:
    y = leaf(lib, 3) * 2
    seed = lib.ones(1)
    return error_of(lambda: lib.autograd.backward([y], [seed]), "Mismatch in shape")
