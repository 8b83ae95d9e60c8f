"""Group J, views: what they share with their base, and how their histories follow it."""

from __future__ import annotations

import copy
from typing import Any

import mpgrad as mg
from tests.semantics.paired import error_of, leaf, paired, row, values

_VIEWS: dict[str, Any] = {
    "select": lambda lib, x: x[1],
    "slice": lambda lib, x: x[1:, ::2],
    "new axis": lambda lib, x: x[:, None, 1:],
    "ellipsis": lambda lib, x: x[..., 0],
    "narrow": lambda lib, x: lib.narrow(x, 1, 1, 2),
    "view": lambda lib, x: x.view(2, 6),
    "reshape": lambda lib, x: x.reshape(-1),
    "view_as": lambda lib, x: x.view_as(lib.zeros(4, 3)),
    "flatten": lambda lib, x: lib.flatten(x),
    "permute": lambda lib, x: lib.permute(x, (1, 0)),
    "transpose": lambda lib, x: x.transpose(0, 1),
    "t": lambda lib, x: x.t(),
    "T": lambda lib, x: x.T,
    "movedim": lambda lib, x: lib.movedim(x, 0, 1),
    "movedim of several": lambda lib, x: lib.moveaxis(x.view(3, 2, 2), (0, 2), (1, 0)),
    "swapaxes": lambda lib, x: lib.swapaxes(x, 0, 1),
    "unflatten": lambda lib, x: x.unflatten(1, (2, -1)),
    "ravel": lambda lib, x: lib.ravel(x),
    "tensor_split": lambda lib, x: lib.tensor_split(x, (1, 3), 1)[1],
    "squeeze": lambda lib, x: x[:1].squeeze(),
    "unsqueeze": lambda lib, x: x.unsqueeze(1),
    "diagonal": lambda lib, x: lib.diagonal(x, 1),
    "expand to the same": lambda lib, x: x.expand(3, 4),
    "expand with ones": lambda lib, x: x.expand(1, 1, 3, 4),
    "chain": lambda lib, x: x.t()[1:3].unsqueeze(0).transpose(0, 2)[1:],
}


@paired("J1", "J15")
def test_every_view_shares_memory_and_version(lib: Any) -> Any:
    found = {}
    for name, make in _VIEWS.items():
        base = lib.tensor(values(3, 4))
        view = make(lib, base)
        assert view._is_view()
        assert view._base is base
        view.mul_(2)
        versions = (base._version, view._version)
        base.add_(1)
        found[name] = (base, view, versions, view._version)
    return found


@paired("J6", "J5")
def test_a_change_of_a_view_is_a_change_of_its_base(lib: Any) -> Any:
    found = {}
    for name, make in _VIEWS.items():
        x = leaf(lib, 3, 4)
        base = x * 2
        view = make(lib, base)
        weight = leaf(lib, *view.shape, seed=1)
        view.mul_(weight)
        (base * base).sum().backward()
        assert "CopySlices" in type(base.grad_fn).__name__ + str(base.grad_fn)
        found[name] = (base, view, x.grad, weight.grad)
    return found


@paired("J7", "F1")
def test_a_change_of_the_base_is_a_change_of_its_views(lib: Any) -> Any:
    found = {}
    for name, make in _VIEWS.items():
        x, factor = leaf(lib, 3, 4), leaf(lib, 3, 4, seed=2)
        base = x * 2
        view = make(lib, base)
        before = view.grad_fn
        base.mul_(factor)
        assert view.grad_fn is not before
        assert view.grad_fn is view.grad_fn
        (view * view).sum().backward()
        found[name] = (view, x.grad, factor.grad)
    return found


@paired("J7", "F1")
def test_a_stale_history_is_rebuilt_without_recording_too(lib: Any) -> Any:
    x = leaf(lib, 4)
    base = x * 1
    view = base[1:]
    base.mul_(3)
    with lib.no_grad():
        node = view.grad_fn
        assert node is not None
        assert view.requires_grad
    assert view.grad_fn is node
    view.sum().backward()
    return x.grad


@paired("J5", "J6")
def test_a_view_of_a_constant_makes_the_constant_require_grad(lib: Any) -> Any:
    base = lib.zeros(2, 3, dtype=lib.float64)
    earlier, row_ = base.t(), base[0]
    value = leaf(lib, 3)
    flags = [base.requires_grad, earlier.requires_grad]
    row_.copy_(value * 2)
    flags += [base.requires_grad, earlier.requires_grad, row_.requires_grad, base.is_leaf]
    (earlier * earlier).sum().backward()
    return flags, base, value.grad


@paired("J15")
def test_a_view_of_a_view_has_the_first_base(lib: Any) -> Any:
    base = lib.zeros(3, 4)
    view = base[1:].t().view(4, 2)[0]
    assert view._base is base
    assert not base._is_view()
    assert base._base is None
    copies = [base.clone(), base + 0, base[[0, 1]], base.reshape(12)[base.view(-1) > 0]]
    return [t._is_view() for t in copies]


@paired("J6", "J7")
def test_views_of_views_and_siblings_agree(lib: Any) -> Any:
    x = leaf(lib, 3, 4)
    base = x * 2
    left, right = base[:, :2], base[:, 1:]
    inner = left[1]
    inner.mul_(3)
    right.add_(1)
    left.sin_()
    total = (base * 1.5).sum() + (inner * right[1, :2]).sum() + left.sum()
    total.backward()
    return base, left, right, inner, x.grad


@paired("J6")
def test_a_view_with_the_strides_of_a_transposed_base(lib: Any) -> Any:
    array = values(4, 3)
    base = lib.from_numpy(array).t()
    factor = leaf(lib, 12)
    base.t().view(-1).mul_(factor)
    (base * lib.tensor(values(3, 4, seed=3))).sum().backward()
    return base, factor.grad, array


@paired("J6")
def test_a_view_that_a_dense_copy_could_not_have(lib: Any) -> Any:
    # Rows of 5 in lines of 6: every second element of a row and the rows themselves are evenly
    # spaced, so that the view exists; in a dense gradient they are not.
    base = lib.from_numpy(values(4, 6)[:, :5])
    factor = leaf(lib, 12)
    base[:, ::2].view(-1).mul_(factor)
    (base * lib.tensor(values(4, 5, seed=3))).sum().backward()
    return base, factor.grad


@paired("J4")
def test_no_change_of_a_view_of_a_leaf(lib: Any) -> Any:
    x = leaf(lib, 4)

    def assign() -> None:
        x[0] = 1.0

    found = [
        error_of(lambda: x[:2].mul_(2), "view of a leaf Variable that requires grad"),
        error_of(lambda: x.view(2, 2)[0].zero_(), "view of a leaf Variable that requires grad"),
        error_of(assign, "leaf Variable that requires grad"),
        error_of(lambda: lib.zeros(4)[1:].requires_grad_().add_(1), "leaf Variable that requires"),
    ]
    return found, x, x._version


@paired("J8")
def test_several_views_at_once_cannot_be_changed(lib: Any) -> Any:
    words = "is a view and is being modified inplace", "function that returns multiple views"
    found = []
    for make in (
        lambda x: x.unbind(0),
        lambda x: x.split(1),
        lambda x: x.split([1, 2]),
        lambda x: x.chunk(2, 1),
        lambda x: tuple(x),
    ):
        first = make(leaf(lib, 3, 4) * 1)[0]
        found.append(error_of(lambda v=first: v.mul_(2), "Output 0 of", *words))
        found.append(error_of(lambda v=first: v.t().add_(1), *words))
    return found


@paired("J8", "F1")
def test_several_views_at_once_cannot_follow_their_base(lib: Any) -> Any:
    base = leaf(lib, 3, 4) * 1
    first, second, _ = base.unbind()
    total = (second * 2).sum()
    base.mul_(2)
    words = "its base or another view of its base has been modified inplace", "multiple views"
    found = [error_of(lambda: first.grad_fn, *words), error_of(lambda: first * 2, *words)]
    return found, total, first.requires_grad


@paired("J8", "J19")
def test_several_views_at_once_may_change_without_recording(lib: Any) -> Any:
    base = lib.tensor(values(3, 4))
    for part in base.unbind():
        part.mul_(2)
    with lib.no_grad():
        x = leaf(lib, 3)
        for part in x.split(1):
            part.zero_()
    return base, base._version, x, x._version


@paired("J8")
def test_a_view_made_without_recording_cannot_be_changed_with_it(lib: Any) -> Any:
    base = leaf(lib, 4) * 1
    with lib.no_grad():
        view = base[1:]
    words = "no_grad mode and is being modified inplace with grad mode enabled"
    found = [
        error_of(lambda: view.mul_(2), "A view was created in", words),
        error_of(lambda: view[0].mul_(2), "is a view of a view which was created in", words),
    ]
    base.mul_(2)
    changed = "its base or another view of its base has been modified inplace"
    return found, error_of(lambda: view.grad_fn, "A view was created in no_grad mode and", changed)


@paired("J8")
def test_a_view_made_without_recording_asks_for_grad_with_its_base(lib: Any) -> Any:
    x = leaf(lib, 4)
    with lib.no_grad():
        view = x[1:]
        view.mul_(2)
    return view.requires_grad, view._is_view(), x._version, x


@paired("J11")
def test_detach_shares_memory_and_version(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * 2
    z = y.detach()
    z.mul_(5)
    flags = (z.requires_grad, z.is_leaf, z._is_view(), y._version, z._version)
    y.sum().backward()
    return flags, y, x.grad


@paired("J11")
def test_detach_in_place(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * 2
    y.retain_grad()
    same = y.detach_()
    refused = error_of(lambda: y[1:].detach_(), "Can't detach views in-place")
    other = leaf(lib, 3).detach_()
    return same is y, y.grad_fn, y.requires_grad, y.is_leaf, refused, other.requires_grad


@paired("J12")
def test_data_can_be_replaced(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * 2
    node = y.grad_fn
    same = y
    y.data = lib.ones(3, dtype=lib.float64)
    x.data = lib.zeros(2, dtype=lib.float32)
    assert same is y
    assert y.grad_fn is node

    def integers() -> None:
        x.data = lib.zeros(2, dtype=lib.int64)

    def no_tensor() -> None:
        x.data = 3

    found = [
        error_of(integers, "must be floating point"),
        error_of(no_tensor, "has to be a tensor"),
    ]
    (x * 3).sum().backward()
    return y, y._version, x, x.grad, found


@paired("J1", "J12")
def test_data_has_a_version_of_its_own(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * x
    x.data.mul_(2)
    versions = (x._version, x.data._version, x.data.requires_grad, x.data._is_view())
    y.sum().backward()  # with the new values: nobody could notice
    return versions, x.grad


@paired("J13")
def test_the_version_can_be_raised_by_hand(lib: Any) -> Any:
    x = leaf(lib, 3)
    saved = lib.tensor(values(3))
    y = (x * saved).sum()
    view = saved[1:]
    lib.autograd.graph.increment_version(view)
    first = (saved._version, view._version)
    lib.autograd.graph.increment_version([saved, view])
    return first, saved._version, error_of(y.backward, "modified by an inplace operation")


@paired("J2", "J17")
def test_a_saved_view_notices_a_change_of_its_base(lib: Any) -> Any:
    x, base = leaf(lib, 3), lib.tensor(values(4))
    y = (x * base[1:]).sum()
    base[0] = 7.0
    words = "modified by an inplace operation", "version 1; expected version 0"
    found = [error_of(y.backward, *words)]
    base = lib.tensor(values(4))
    y = (x * base).sum() if x.shape == base.shape else (x * base[:3]).sum()
    base.view(2, 2)[1, 1] = 0.0  # not even the part that was saved
    return [*found, error_of(y.backward, *words)]


@paired("J18")
def test_parts_of_complex_numbers_changed_in_place(lib: Any) -> Any:
    x, w = leaf(lib, 3, 2), leaf(lib, 3, seed=1)
    z = lib.view_as_complex(x * 1)
    z.real.mul_(w)
    z.imag[1:] = w[1:] * w[:2]
    lib.view_as_real(z)[0].add_(w[:2])
    (z * z.conj()).abs().sum().backward()
    return z.detach(), x.grad, w.grad


@row("J15")
def test_copies_of_a_view_are_no_views() -> None:
    view = mg.zeros(4)[1:]
    assert not copy.deepcopy(view)._is_view()


@paired("J6")
def test_one_element_of_an_expanded_tensor_may_be_changed(lib: Any) -> Any:
    base = leaf(lib, 1) * 2
    wide = base.expand(3)
    wide[0] = 5
    refused = error_of(lambda: wide.add_(1), "more than one element of the written-to tensor")
    return base, wide, refused
