"""Groups I and E: what forward saves, and when it is freed."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import mpgrad as mg
from tests.semantics.paired import error_of, leaf, paired, row

# ---------------------------------------------------------------------- what is saved (I1 to I6)


@paired("I1", "F5")
def test_a_saved_input_is_the_very_tensor(lib: Any) -> Any:
    a, b = leaf(lib, 3), leaf(lib, 3, seed=1) * 2
    product = a * b
    saved = product.grad_fn
    assert saved._saved_self is a
    assert saved._saved_other is b
    return saved._saved_self, saved._saved_other.grad_fn is b.grad_fn


@paired("I2", "F5")
def test_a_saved_output_is_detached_and_gets_its_history_back(lib: Any) -> Any:
    y = leaf(lib, 3).exp()
    node = y.grad_fn
    unpacked = node._saved_result
    assert unpacked is not y
    assert unpacked.grad_fn is node
    return unpacked, unpacked.output_nr, unpacked.is_leaf


@paired("I2", "E8")
def test_a_saved_output_makes_no_cycle(lib: Any) -> Any:
    gc.disable()
    try:
        y = leaf(lib, 3).exp()
        node = weakref.ref(y.grad_fn) if lib is mg else None
        seen = weakref.ref(y)
        del y
        return seen() is None, node is None or node() is None
    finally:
        gc.enable()


@row("E8")
def test_a_cycle_that_a_pack_hook_makes_is_collected() -> None:
    gc.disable()
    try:
        with mg.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            y = leaf(mg, 3).exp()
        node = weakref.ref(y.grad_fn)
        del y
        assert node() is not None, "the hook keeps the output, and so its Node"
        gc.collect()
        assert node() is None
    finally:
        gc.enable()


@paired("I4")
def test_a_saved_input_that_changed_is_an_error(lib: Any) -> Any:
    w, x = leaf(lib, 3), leaf(lib, 3, seed=1).detach()
    y = (w * x).sum()
    x.add_(1)
    error = error_of(y.backward, "modified by an inplace operation", "is at version 1", "version 0")
    return error, w.grad


@paired("I4")
def test_a_saved_output_that_changed_is_an_error(lib: Any) -> Any:
    y = leaf(lib, 3).exp()
    total = y.sum()
    with lib.no_grad():
        y.mul_(2)
    return error_of(total.backward, "modified by an inplace", "output 0 of Exp", "version 1")


@paired("I4", "F5")
def test_the_version_is_checked_when_somebody_looks(lib: Any) -> Any:
    x = leaf(lib, 3).detach()
    y = leaf(lib, 3) * x
    with lib.no_grad():
        x.zero_()
    return error_of(lambda: y.grad_fn._saved_other, "modified by an inplace operation")


@paired("I5")
def test_a_saved_tensor_that_was_detached_in_place_is_an_error(lib: Any) -> Any:
    x, w = leaf(lib, 3) * 2, leaf(lib, 3, seed=1)
    y = (x * w).sum()
    x.detach_()
    leaf_ = leaf(lib, 3)
    z = (leaf_ * w).sum()  # a leaf loses nothing
    leaf_.detach_()
    z.backward()
    return error_of(y.backward, "has been detached in-place"), w.grad


@paired("I6")
def test_inference_tensors_cannot_be_saved(lib: Any) -> Any:
    w = leaf(lib, 3)
    with lib.inference_mode():
        x = leaf(lib, 3, seed=1).detach() * 2
        assert not (x * w).requires_grad
    words = "Inference tensors cannot be saved for backward"
    (w * x.clone() + x).sum().backward()  # a clone can, and the sum saves nothing
    with lib.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        packing = error_of(lambda: w * x, words)
    return error_of(lambda: w * x, words), packing, w.grad


# ---------------------------------------------------------------------- lifetime (E1 to E9)


@paired("I4", "E1")
def test_hooks_run_up_to_the_node_whose_values_changed(lib: Any) -> Any:
    """The error comes when the Node's turn comes, not when backward begins."""
    x, w, seen = leaf(lib, 3), leaf(lib, 3, seed=1).detach(), []
    y = (x * w).exp()
    inner = y.grad_fn.next_functions[0][0]
    y.register_hook(lambda grad: seen.append(grad.clone()))
    inner.register_prehook(lambda _: seen.append("before"))
    inner.register_hook(lambda *_: seen.append("after"))
    x.register_hook(lambda _: seen.append("leaf"))
    w.add_(1)
    error = error_of(y.sum().backward, "modified by an inplace operation")
    freed = error_of(lambda: y.grad_fn._saved_result, "a second time")
    return error, freed, seen, x.grad


@paired("E2", "E1")
def test_what_ran_before_the_error_is_freed(lib: Any) -> Any:
    x = leaf(lib, 3)
    u = x.exp()
    u.sum().backward()  # frees the innermost Node only
    for hooked in (False, True):
        v = u.sin()
        w = v.tanh()
        seen = []
        if hooked:
            v.register_hook(lambda grad, seen=seen: seen.append(grad.clone()))  # type: ignore[misc]
        error = error_of(w.sum().backward, "a second time")
        for node in (w.grad_fn, v.grad_fn):
            name = "_saved_result" if node is w.grad_fn else "_saved_self"
            error_of(lambda node=node, name=name: getattr(node, name), "a second time")  # type: ignore[misc]
    return error, seen, x.grad


@paired("E1")
def test_a_failed_function_keeps_what_it_saved(lib: Any) -> Any:
    class Fails(lib.autograd.Function):  # type: ignore[misc, name-defined]
        run_on = "worker"

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            raise ValueError("mine")

    x = leaf(lib, 3)
    u = x.exp()
    v = Fails.apply(u)
    w = v.tanh()
    error = error_of(w.sum().backward, "mine")
    freed = error_of(lambda: w.grad_fn._saved_result, "a second time")
    return error, freed, v.grad_fn.saved_tensors, u.grad_fn._saved_result


@paired("E7")
def test_a_graph_that_threads_share_is_freed_by_the_first(lib: Any) -> Any:
    x = leaf(lib, 3)
    shared = x.exp()
    first, second = (shared * 2).sum(), shared.sin().sum()
    thread = threading.Thread(target=first.backward)
    thread.start()
    thread.join()
    outcomes = []

    def run() -> None:
        outcomes.append(error_of(second.backward, "a second time"))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return x.grad, outcomes


@paired("E2", "E4")
def test_a_graph_is_used_up_unless_retained(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = (x * x).sum()
    for _ in range(3):
        y.backward(retain_graph=True)
    y.backward()
    return x.grad, error_of(y.backward, "backward through the graph a second time"), x.grad


@paired("E2")
def test_nodes_that_saved_nothing_may_run_again(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = (x + 1).sum()
    y.backward()
    y.backward()
    return x.grad


@paired("E3")
def test_what_a_partial_grad_did_not_run_stays(lib: Any) -> Any:
    x = leaf(lib, 3)
    u = x * x
    v = (u * u).sum()
    first = lib.autograd.grad(v, u)
    u.sum().backward()
    return first, x.grad, error_of(lambda: lib.autograd.grad(v, u), "a second time")


@paired("E5", "F5")
def test_freed_saved_tensors_say_so(lib: Any) -> Any:
    y = leaf(lib, 3).exp() ** 2
    node = y.grad_fn
    y.sum().backward()
    return (
        error_of(lambda: node._saved_self, "directly access saved tensors after"),
        error_of(lambda: node.next_functions[0][0]._saved_result, "retain_graph=True"),
    )


@paired("E1")
def test_nodes_are_freed_one_after_another(lib: Any) -> Any:
    """A hook sees that the Nodes before it have let go, and those behind it have not."""
    x, seen = leaf(lib, 3), []
    u = x.exp()
    v = u.tanh()
    w = v.sigmoid()
    late, middle, early = w.grad_fn, v.grad_fn, u.grad_fn

    def look(_: Any) -> None:
        for node in (late, middle, early):
            try:
                seen.append(node._saved_result)
            except RuntimeError:
                seen.append("freed")

    u.register_hook(look)
    w.sum().backward()
    return seen


@paired("E1")
def test_a_failed_backward_has_freed_what_ran(lib: Any) -> Any:
    x = leaf(lib, 3)
    u = x.exp()
    v = u.tanh()
    u.register_hook(lambda _: 1 / 0)
    error = error_of(v.sum().backward)
    freed = error_of(lambda: v.grad_fn._saved_result, "a second time")
    return error, freed, u.grad_fn._saved_result, x.grad


@paired("E9")
def test_dropping_the_output_drops_the_graph(lib: Any) -> Any:
    x = leaf(lib, 3)
    u = x * 2
    seen = weakref.ref(u)
    y = (u * u).sum()
    del u
    held = seen() is not None
    del y
    gc.collect()
    return held, seen() is None


@paired("F5")
def test_the_attributes_of_a_node(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    node = (x * w.detach()).grad_fn
    names = {"_saved_self", "_saved_other", "_raw_saved_self", "_raw_saved_other"}
    assert names - {"_saved_self", "_raw_saved_self"} <= set(dir(node)) or lib is mg
    return (
        node._saved_self,
        node._saved_other,
        type(node._raw_saved_other) is lib.autograd.SavedTensor,
        error_of(lambda: node._saved_nothing, "_saved_nothing"),
        hasattr((x + w).grad_fn, "_saved_result"),
        hasattr(node, "_raw_saved_alpha"),
    )


@paired("H5")
def test_a_function_may_read_its_saved_tensors_often(lib: Any) -> Any:
    class Square(lib.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x, None)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            x, none = ctx.saved_tensors
            again, _ = ctx.saved_tensors
            assert none is None
            return grad * (x + again)

    x = leaf(lib, 3)
    y = Square.apply(x)
    assert y.grad_fn.saved_tensors[0] is x
    y.sum().backward()
    freed = error_of(lambda: y.grad_fn.saved_tensors, "a second time")
    again = error_of(y.sum().backward, "a second time")
    z = x.detach() + 1
    z.requires_grad_()
    y = Square.apply(z * 1)
    with lib.no_grad():
        y.grad_fn.saved_tensors[0].mul_(2)
    return x.grad, freed, again, error_of(y.sum().backward, "modified by an inplace operation")


@paired("H6")
def test_saved_tensors_that_may_be_read_once(lib: Any) -> Any:
    class Once(lib.autograd.Function):  # type: ignore[misc, name-defined]
        clear_saved_tensors_on_access = True

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grad * 2 * x

    class Twice(Once):
        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,), (again,) = ctx.saved_tensors, ctx.saved_tensors
            return grad * (x + again)

    x = leaf(lib, 3)
    y = Once.apply(x)
    y.sum().backward(retain_graph=True)
    again = error_of(y.sum().backward, "saved_tensors can only be accessed once")
    looked = Once.apply(x)
    assert len(looked.grad_fn._raw_saved_tensors) == 1
    assert looked.grad_fn.saved_tensors[0] is x
    assert looked.grad_fn._raw_saved_tensors == ()
    return (
        x.grad,
        again,
        error_of(looked.sum().backward, "only be accessed once"),
        error_of(Twice.apply(x).sum().backward, "only be accessed once"),
    )
