"""Group J, views: Functions, hooks and second derivatives over memory that changed."""

from __future__ import annotations

from typing import Any

import pytest

import mpgrad as mg
from tests.semantics.paired import error_of, leaf, paired, row, values


@paired("J8", "H13")
def test_views_that_a_function_returns(lib: Any) -> Any:
    class Through(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 3

    class Same(Through):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x

    class Two(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x[:1], x[1:]

        @staticmethod
        def backward(ctx: Any, first: Any, second: Any) -> Any:
            return lib.cat([first, second])

    x = leaf(lib, 3)
    base = x * 2
    words = "is a view and is being modified inplace", "inside a custom Function"
    found = []
    for function in (Through, Same):
        y = function.apply(base)
        assert y is not base
        assert y._is_view()
        assert y._base is base
        found.append(error_of(lambda y=y: y.mul_(2), "Output 0 of", *words))
        found.append(error_of(lambda y=y: y[0].mul_(2), *words))
        y.clone().mul_(2).sum().backward(retain_graph=True)
    first, _ = Two.apply(base)
    found.append(error_of(lambda: first.mul_(2), "function that returns multiple views"))
    with lib.no_grad():
        y.mul_(2)
    base.add_(1)
    found.append(error_of(lambda: y.grad_fn, "another view of its base has been modified"))
    return found, x.grad, base


@paired("H8", "J6")
def test_a_function_may_change_a_view(lib: Any) -> Any:
    class Double(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    class Several(Double):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x, x * 1

    x = leaf(lib, 4)
    base = x * 3
    view, other = base[:2], base[1:]
    result = Double.apply(view)
    assert result is view
    (base.sum() + (other * other).sum() + view.sum()).backward()
    refused = [
        error_of(lambda: Several.apply((x * 1)[:2]), "cannot return more than one Tensor"),
        error_of(lambda: Double.apply(leaf(lib, 2)), "leaf Variable that requires grad has been"),
    ]
    return base, view, x.grad, refused


@paired("D17", "G8", "G9")
def test_retain_grad_follows_and_hooks_stay(lib: Any) -> Any:
    log: list[Any] = []
    x = leaf(lib, 4)
    base = x * 1
    view = base[:2]
    for name, tensor in (("base", base), ("view", view)):
        tensor.register_hook(lambda g, name=name: log.append((name, g.clone())))
        tensor.retain_grad()
    view.mul_(3)
    base.register_hook(lambda g: log.append(("base, later", g.clone())))
    view.register_hook(lambda g: log.append(("view, later", g.clone())))
    ((base * base).sum() + (view * 5).sum()).backward()
    return log, base.grad, view.grad, x.grad


@paired("D17", "G8")
def test_retain_grad_and_hooks_in_place_without_views(lib: Any) -> Any:
    log: list[Any] = []
    x = leaf(lib, 3)
    y = x * 2
    y.register_hook(lambda g: log.append(("old", g.clone())))
    y.retain_grad()
    y.mul_(3)
    y.register_hook(lambda g: log.append(("new", g.clone())))
    y.exp_()
    y.sum().backward()
    return log, y.grad, y.retains_grad, x.grad


@paired("D17")
def test_retain_grad_of_a_view_whose_base_changes(lib: Any) -> Any:
    x = leaf(lib, 4)
    base = x * 2
    view = base[1:3]
    view.retain_grad()
    base.mul_(5)
    (base.sum() + (view * 10).sum()).backward()
    return view.grad, x.grad


@paired("J6", "E6")
def test_changes_of_views_can_be_differentiated_twice(lib: Any) -> Any:
    x, w = leaf(lib, 3, 3), leaf(lib, 3, seed=1)
    base = x * x
    base.diagonal().mul_(w)
    base[0] = w.exp() * base[1].clone()
    base.t()[1:].sin_()
    (gx, gw) = lib.autograd.grad((base * base).sum(), [x, w], create_graph=True)
    (gx.sum() * gw.sum()).backward()
    return gx, gw, x.grad, w.grad


@paired("I3", "J6")
def test_a_view_saves_its_own_result(lib: Any) -> Any:
    x = leaf(lib, 4)
    base = x * 2
    view = base[1:3]
    view.exp_()
    (first,) = lib.autograd.grad(base.sum(), x, create_graph=True)
    first.sum().backward()
    base = x * 2
    base[:2].tanh_()
    base.add_(1)
    stale = error_of(lambda: base.sum().backward(), "modified by an inplace operation")
    return first, x.grad, stale


@paired("J6")
def test_a_long_series_of_assignments(lib: Any) -> Any:
    x = leaf(lib, 50)
    state = lib.zeros(50, dtype=lib.float64)
    state[0] = x[0]
    for i in range(1, 50):
        state[i] = state[i - 1] * 0.9 + x[i]
    (state * state).sum().backward()
    return state, x.grad


@row("J16")
def test_a_view_is_replayed_step_by_step() -> None:
    base = mg.zeros(3, 4, requires_grad=True) * 1
    view = base.t()[1:]
    base.mul_(2)
    node, names = view.grad_fn, []
    for _ in range(4):
        names.append(node.name())
        node = node.next_functions[0][0]
    assert names == ["SliceBackward0", "PermuteBackward0", "MulBackward0", "MulBackward0"]


@pytest.mark.parametrize("share", [True, False])
def test_a_view_can_be_shown_after_its_history_became_invalid(share: bool) -> None:
    base = mg.ones(2, 2, requires_grad=True) * 1
    part = base.unbind()[0]
    if share:
        base.mul_(2)
    assert ("grad_fn=<Invalid>" in repr(part)) == share


@paired("K3", "J8")
def test_views_made_in_inference_mode(lib: Any) -> Any:
    plain, x = lib.zeros(3), leaf(lib, 3)
    y = x * 1
    with lib.inference_mode():
        of_plain, of_recorded = plain[1:], y[1:]
        inner = of_plain[1:]
        plain.add_(1)
        of_plain.mul_(3)
        x.add_(1)
        own = lib.zeros(3)
        own_view = own[1:]
        own_view.add_(2)
    flags = [t.is_inference() for t in (of_plain, of_recorded, inner, own, own_view, own[2:])]
    flags += [t._is_view() for t in (of_plain, of_recorded, inner, own_view, own[2:])]
    words = "created in inference mode and is being modified inplace in normal mode"
    one = lib.ones((), requires_grad=True)
    refused = [
        error_of(lambda: of_plain.mul_(one), "A view was", words),
        error_of(lambda: inner.mul_(one), "A view was", words),
        error_of(lambda: of_recorded.mul_(2), "A view was", words),
        error_of(lambda: of_recorded[0].mul_(2), words),
        error_of(lambda: own_view.mul_(2), "Inplace update to inference tensor"),
        error_of(lambda: own_view._version, "do not track version counter"),
    ]
    # (PyTorch changes `own` before it refuses, so it is not compared.)
    versions = (plain._version, of_plain._version, x._version)
    of_plain.mul_(2)  # not recorded, so it may
    return flags, refused, versions, plain, x


@paired("I17", "I3", "J6")
def test_saved_tensor_hooks_see_what_changes_of_views_save(lib: Any) -> Any:
    packed: list[Any] = []

    def pack(tensor: Any) -> Any:
        packed.append(tensor.detach().clone())
        return packed[-1]

    x, w = leaf(lib, 4), leaf(lib, 2, seed=1)

    def unpack(kept: Any) -> Any:
        with lib.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
            return (kept.requires_grad_() * kept / kept).detach()

    with lib.autograd.graph.saved_tensors_hooks(pack, unpack):
        base = x * 2
        view = base[1:3]
        view.mul_(w)
        view.exp_()
        base.sin_()
    base.sum().backward()
    return [t for t in packed if t.ndim], x.grad, w.grad


@paired("J6", "J7")
def test_memory_is_freed_with_the_last_user(lib: Any) -> Any:
    import gc
    import weakref

    x = leaf(lib, 4)
    base = x * 2
    view = base[:2]
    other = base[2:]
    view.mul_(other.clone())
    nodes = [weakref.ref(view), weakref.ref(base)]
    total = base.sum()
    total.backward()
    del base, view, other, total
    gc.collect()
    return [node() is None for node in nodes], x.grad


@paired("J5", "J7")
def test_a_view_that_requires_grad_since_its_base_does(lib: Any) -> Any:
    x = leaf(lib, 3)
    base = lib.zeros(3, dtype=lib.float64)
    early = base[1:]
    base.copy_(x * 2)
    early.grad_fn  # noqa: B018  (PyTorch takes a stale view for a leaf unless somebody looks)
    early.retain_grad()
    kept = (early.retains_grad, early.is_leaf, early.requires_grad)
    early.register_hook(lambda g: g * 3)
    refused = error_of(early.numpy, "Can't call numpy")
    (early * early).sum().backward()
    return kept, refused, early.grad, x.grad


@paired("J5", "J7")
def test_jacobians_through_assigned_views(lib: Any) -> Any:
    def function(x: Any) -> Any:
        out = lib.zeros(3, dtype=lib.float64)
        early = out[1:]
        for i in range(3):
            out[i] = x[i] * x.sum()
        return early

    x = lib.tensor(values(3))
    return lib.autograd.functional.jacobian(function, x)
