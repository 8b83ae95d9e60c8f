"""Code that sets items only of what it has just made, and code of which that is not clear."""

from __future__ import annotations

import textwrap

import pytest

from mpgrad.shipping.own_containers import stores_elsewhere

OWN = {
    "array": "v = np.zeros(3, dtype=float)\nv[0] = 1",
    "function without a module": "v = zeros(3)\nv[0] = 1",
    "in a loop": "v = np.empty_like(x)\nfor k in range(3):\n    v[k] = W[k] * x[k]",
    "added to": "v = np.zeros(3)\nv[0, 1:2] += W[0]",
    "slice": "v = np.zeros(3)\nv[0:2] = W[0:2]",
    "deleted": "v = list(x)\ndel v[0]",
    "copy": "v = W.copy()\nv[W > 0] = 0",
    "arithmetic": "v = W * 2\nv[...] = 1",
    "list": "v = [1, 2, 3, 4]\nv[0] = v[1]",
    "repeated list": "v = [0] * 3\nv[x] = 1",
    "dictionary": "v = {}\nv['a'] = 1",
    "filled dictionary": "v = {'a': W}\nv['b'] = 1",
    "made twice": "v = np.zeros(3)\nv[0] = 1\nv = np.ones(3)\nv[0] = 1",
    "no items": "v = W",
}
OTHERS = {
    "parameter": "x[0] = 1",
    "keywords": "options['a'] = 1",
    "global": "W[0] = 1",
    "another name": "v = W\nv[0] = 1",
    "sometimes another name": "v = np.zeros(3)\nif x:\n    v = W\nv[0] = 1",
    "either": "v = np.zeros(3) if x else W\nv[0] = 1",
    "or": "v = W or np.zeros(3)\nv[0] = 1",
    "function that may copy": "v = np.asarray(W)\nv[0] = 1",
    "inside a list": "v = [W]\nv[0][1] = 2",
    "index": "v = np.zeros(3)\nW[v] = 1",
    "index that is added to": "v = np.zeros(3)\nW[v] += 1",
    "slice of own indices": "v = np.zeros(3)\nW[v:v] = 1",
    "item of a loop": "for v in [W]:\n    v[0] = 1",
    "unpacked": "u, v = np.zeros(3), W\nv[0] = 1",
    "context": "with open(x) as v:\n    v[0] = 1",
    "chosen by the expression": "v = np.zeros(3)\n(W if x else v)[0] = 1",
    "one of several": "v = np.zeros(3)\nv[0] = W[0] = 1",
    "added in place": "v = W\nv += 1\nv[0] = 1",
    "cell": "v = np.zeros(3)\ndef inner(): return v\nv[0] = 1",
}


def stores(body: str) -> bool:
    names: dict[str, object] = {}
    head = "def backward(x, *rest, **options):\n"
    exec(compile(head + textwrap.indent(body, "    "), "a test", "exec"), names)
    return stores_elsewhere(names["backward"].__code__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", OWN)
def test_items_of_what_the_code_has_made(name: str) -> None:
    assert not stores(OWN[name])


@pytest.mark.parametrize("name", OTHERS)
def test_items_of_what_others_may_have(name: str) -> None:
    assert stores(OTHERS[name])
