"""Hooks and in-place operations: what stays with the old Node and what moves on."""

from __future__ import annotations

from typing import Any

from tests.semantics.paired import leaf, paired


@paired("G8")
def test_a_hook_stays_with_the_value_that_it_was_registered_on(lib: Any) -> Any:
    x = leaf(lib, 2)
    y = x * 2
    log: list[Any] = []
    y.register_hook(lambda grad: log.append(("before", grad)))
    y.mul_(3)
    y.register_hook(lambda grad: log.append(("between", grad)))
    y.mul_(5)
    y.register_hook(lambda grad: log.append(("after", grad)))
    y.sum().backward()
    assert [name for name, _ in log] == ["after", "between", "before"]
    return log, x.grad


@paired("G8")
def test_retain_grad_moves_with_the_tensor(lib: Any) -> Any:
    x = leaf(lib, 2)
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    (y * 7).sum().backward()
    return y.grad, x.grad


@paired("G9")
def test_hooks_of_a_base_and_its_view_stay_with_the_old_nodes(lib: Any) -> Any:
    x = leaf(lib, 4)
    base = x * 1
    log: list[Any] = []
    base.register_hook(lambda grad: log.append(("base", grad)))
    view = base[:2]
    view.register_hook(lambda grad: log.append(("view", grad)))
    view.mul_(3)
    base.register_hook(lambda grad: log.append(("new base", grad)))
    view.register_hook(lambda grad: log.append(("new view", grad)))
    base.sum().backward(retain_graph=True)
    through_base = [name for name, _ in log]
    view.sum().backward()
    return through_base, log, x.grad
