"""Group J, in-place changes of a shape: ``transpose_`` and its like, ``resize_``, ``set_``."""

from __future__ import annotations

from typing import Any

import mpgrad as mg
from tests.semantics.paired import error_of, leaf, paired, row

_CHANGES = {
    "transpose_": lambda t: t.transpose_(0, 1),
    "t_": lambda t: t.t_(),
    "squeeze_": lambda t: t.unsqueeze_(0).squeeze_(0),
    "unsqueeze_": lambda t: t.unsqueeze_(1),
    "swapaxes_": lambda t: t.swapaxes_(0, 1),
    "swapdims_": lambda t: t.swapdims_(1, 0),
}


@paired("J5")
def test_a_shape_changes_in_place_and_is_recorded(lib: Any) -> Any:
    found = {}
    for name, change in _CHANGES.items():
        x = leaf(lib, 2, 3)
        y = x * 2
        assert change(y) is y
        (y * y).sum().backward()
        found[name] = (tuple(y.shape), y._version > 0, y.grad_fn is not None, y, x.grad)
    return found


@paired("J2", "J5")
def test_a_saved_tensor_notices_that_its_shape_was_changed(lib: Any) -> Any:
    x = leaf(lib, 2, 3)
    y = x * 2
    z = y**2
    y.transpose_(0, 1)
    return error_of(z.sum().backward, "modified by an inplace operation")


@paired("J3", "J8")
def test_what_may_not_change_in_place_may_not_change_its_shape(lib: Any) -> Any:
    def no_grad_view(base: Any) -> Any:
        with lib.no_grad():
            return base.view_as(base)

    made = {
        "leaf": (lambda base: leaf(lib, 2, 3), "leaf Variable that requires grad"),
        "no_grad": (no_grad_view, "A view was created in no_grad mode"),
        "unbind": (lambda base: base.unbind()[0], "function that returns multiple views"),
    }
    return {
        name: error_of(lambda make=make: make(leaf(lib, 2, 3) * 1).unsqueeze_(0), words)
        for name, (make, words) in made.items()
    }


@paired("J6")
def test_the_shape_of_a_view_changes_and_it_stays_a_view(lib: Any) -> Any:
    x, w = leaf(lib, 2, 3), leaf(lib, 3, 2, seed=1)
    base = x * 1
    view = base.view(2, 3)
    view.transpose_(0, 1)
    view.mul_(w)
    base.pow(2).sum().backward()
    return view._is_view(), view, base, x.grad, w.grad


@paired("J7")
def test_views_made_after_the_change_follow(lib: Any) -> Any:
    x = leaf(lib, 2, 3)
    base = x * 1
    base.unsqueeze_(0)
    part = base[0, 1]
    part.mul_(3)
    base.sum().backward()
    return base, part, x.grad


@row("J7")
def test_a_view_made_before_the_change_says_that_it_cannot_follow() -> None:
    """PyTorch replays views by their strides; here by how they were made."""
    with mg.Engine("local"):
        base = leaf(mg, 2, 3) * 1
        row_of_base = base[0]
        base.transpose_(0, 1)
        words = "the shape of its base was changed in place"
        error_of(lambda: row_of_base.grad_fn, words)
        error_of(lambda: row_of_base.add_(1), words)


@paired("J5")
def test_resize_keeps_the_first_elements(lib: Any) -> Any:
    x = lib.arange(6, dtype=lib.float64)
    smaller = x.clone().resize_(2, 2)
    larger = x.clone().resize_(2, 4)
    same = x.clone().resize_(6)
    like = x.clone().resize_as_(lib.zeros(3, 1))
    turned = x.clone().view(2, 3).clone().transpose_(0, 1).resize_(6)
    refused = error_of(lambda: leaf(lib, 2).resize_(3), "cannot resize variables that require grad")
    return smaller, smaller._version, larger.flatten()[:6], same._version, like, turned, refused


@row("J5")
def test_a_view_is_not_resized() -> None:
    """PyTorch lets it lie in more, or less, of its base's memory."""
    error_of(lambda: mg.zeros(4)[:2].resize_(3), "cannot resize a view")


@paired("J12")
def test_set_takes_the_memory_of_another(lib: Any) -> Any:
    x, source = leaf(lib, 2), lib.ones(3, dtype=lib.float64)
    edge = lib.autograd.graph.get_gradient_edge(x)
    out = x * 2
    with lib.no_grad():
        x.set_(source)
    source[0] = 5
    unused = error_of(
        lambda: lib.autograd.grad(out.sum(), x, retain_graph=True), "not have been used"
    )
    (found,) = lib.autograd.grad(out.sum(), edge)
    return x.detach(), unused, found


@paired("K3")
def test_shapes_in_inference_mode(lib: Any) -> Any:
    with lib.inference_mode():
        made = lib.ones(1, 2, 3, requires_grad=True)
        made.transpose_(0, 1)
        made.resize_(2, 2)
    outside = lib.ones(1, 2).clone()
    with lib.inference_mode():
        outside.transpose_(0, 1)
    shape = tuple(made.shape)
    refused = error_of(lambda: made.unsqueeze_(0), "Inplace update to inference tensor outside")
    view = made.detach().view(-1)
    return (
        shape, lib.is_inference(made), tuple(outside.shape), lib.is_inference(outside),
        refused, lib.is_inference(view), view.requires_grad, view.is_leaf,
    )  # fmt: skip
