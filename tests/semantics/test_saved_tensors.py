"""Groups I and E: what forward saves, how hooks pack and unpack it, and when it is freed."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import mpgrad as mg
from tests.semantics.paired import error_of, leaf, paired, row


class Recorder:
    """A pair of hooks that keeps what is packed as a NumPy array, and notes what happens."""

    def __init__(self, lib: Any) -> None:
        self.lib = lib
        self.packed: list[Any] = []
        self.unpacked = 0

    def pack(self, tensor: Any) -> Any:
        self.packed.append(tensor.detach().clone())
        return tensor.detach().numpy().copy()

    def unpack(self, array: Any) -> Any:
        self.unpacked += 1
        return self.lib.from_numpy(array)

    def __call__(self) -> Any:
        return self.lib.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)


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


@paired("I3", "I7")
def test_a_result_in_place_of_a_view_is_packed(lib: Any) -> Any:
    hooks, x = Recorder(lib), leaf(lib, 4)
    y = x * 1
    with hooks():
        y[1:3].exp_()
        z = (y * y).sum()
    (first,) = lib.autograd.grad(z, x, create_graph=True)
    first.sum().backward()
    return hooks.packed, first, x.grad


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


@paired("I18")
def test_only_what_a_gradient_needs_is_saved(lib: Any) -> Any:
    hooks, a, b = Recorder(lib), leaf(lib, 2, 2), leaf(lib, 2, 2, seed=1)
    seen = []
    for make in (
        lambda: a + b,
        lambda: a.sum(),
        lambda: a.reshape(4),
        lambda: a[0],
        lambda: a * 2.0,
        lambda: a * b.detach(),
        lambda: a * b,
        lambda: a.detach() * b,
        lambda: a @ b.detach(),
        lambda: a.exp(),
    ):
        hooks.packed.clear()
        with hooks():
            make()
        seen.append(list(hooks.packed))
    with hooks(), lib.no_grad():
        a * b
    return seen


# ---------------------------------------------------------------------- pack and unpack (I7 to I11)


@paired("I7")
def test_hooks_pack_once_and_unpack_for_each_backward(lib: Any) -> Any:
    hooks, x = Recorder(lib), leaf(lib, 3)
    with hooks():
        y = (x * x).exp().sum()
    packed = list(hooks.packed)
    assert hooks.unpacked == 0
    y.backward(retain_graph=True)
    first = hooks.unpacked
    y.backward()
    return packed, first, hooks.unpacked, x.grad


@paired("I7")
def test_only_the_innermost_pair_packs(lib: Any) -> Any:
    outer, inner, x = Recorder(lib), Recorder(lib), leaf(lib, 3)
    with outer():
        y = x.exp()
        with inner():
            z = y * y
        w = z.tanh()
    w.sum().backward()
    return outer.packed, inner.packed, outer.unpacked, inner.unpacked, x.grad


@paired("I7")
def test_the_pack_hook_sees_the_tensor_itself_with_recording_off(lib: Any) -> Any:
    x, seen = leaf(lib, 3), []

    def pack(tensor: Any) -> Any:
        seen.append((tensor is x, tensor.requires_grad, tensor.is_leaf, lib.is_grad_enabled()))
        assert not (tensor * 2).requires_grad
        return tensor.detach()

    with lib.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = x * x.exp()
    y.sum().backward()
    return seen, x.grad


@paired("I7")
def test_hooks_belong_to_a_thread(lib: Any) -> Any:
    hooks, x = Recorder(lib), leaf(lib, 3)
    made = []
    with hooks():
        thread = threading.Thread(target=lambda: made.append(x.exp()))
        thread.start()
        thread.join()
    made[0].sum().backward()
    return len(hooks.packed), hooks.unpacked, x.grad


@paired("I7")
def test_a_pack_hook_may_not_change_its_input(lib: Any) -> Any:
    x = leaf(lib, 3)

    def pack(tensor: Any) -> Any:
        return tensor.mul_(2)

    def record() -> None:
        with lib.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            x.exp()

    error = error_of(record, "pack hook is modifying its input in place")
    y = x.exp()  # nothing of the failure stays
    y.sum().backward()
    return error, x.grad


@paired("I7")
def test_an_unpack_hook_returns_a_tensor(lib: Any) -> Any:
    x = leaf(lib, 3)
    with lib.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach(), lambda _: 1):
        y = x.exp().sum()
    return error_of(y.backward, "unpack_hook expected to be a Tensor", "int"), x.grad


@paired("I7")
def test_hooks_must_be_callable(lib: Any) -> Any:
    hooks = lib.autograd.graph.saved_tensors_hooks
    return [
        error_of(lambda: hooks(3, abs).__enter__()),
        error_of(lambda: hooks(abs, None).__enter__()),
        error_of(lambda: hooks(abs)),
    ]


@paired("I7")
def test_hooks_work_with_grad_and_inputs(lib: Any) -> Any:
    hooks, x, w = Recorder(lib), leaf(lib, 3), leaf(lib, 3, seed=1)
    with hooks():
        y = (x * w).exp() * x
    gradients = lib.autograd.grad(y.sum(), (x, w), retain_graph=True)
    y.sum().backward(inputs=[w])
    return gradients, x.grad, w.grad


@paired("I8")
def test_hooks_on_one_saved_tensor(lib: Any) -> Any:
    x, seen = leaf(lib, 3), []

    def pack(tensor: Any) -> Any:
        seen.append((tensor is x, tensor.requires_grad))
        return tensor * 3

    y = (x * x).sum()
    node = y.grad_fn.next_functions[0][0]
    node._raw_saved_self.register_hooks(pack, lambda tensor: tensor * 2)
    looked = node._saved_self, node._saved_other
    y.backward()
    return seen, looked, x.grad


@paired("I8")
def test_when_hooks_cannot_be_registered(lib: Any) -> Any:
    def same(value: Any) -> Any:
        return value

    x = leaf(lib, 3)
    y = x * x
    handle = y.grad_fn._raw_saved_self
    wrong = [
        error_of(lambda: handle.register_hooks(3, same)),
        error_of(lambda: handle.register_hooks(same, 3)),
        error_of(lambda: handle.register_hooks(same)),
    ]
    handle.register_hooks(same, same)
    twice = error_of(lambda: handle.register_hooks(same, same), "have already been set")
    unneeded = (x * leaf(lib, 3).detach()).grad_fn._raw_saved_self
    none = error_of(lambda: unneeded.register_hooks(same, same), "with value None is forbidden")
    other = y.grad_fn._raw_saved_other
    y.sum().backward()
    freed = error_of(lambda: other.register_hooks(same, same), "after it has been freed")
    made = error_of(lib.autograd.SavedTensor, "from Python is forbidden")
    return wrong, twice, none, freed, made, x.grad


@paired("I8")
def test_register_hooks_checks_its_pack_hook(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * x

    def pack(tensor: Any) -> Any:
        return tensor.add_(1)

    handle = y.grad_fn._raw_saved_self
    return error_of(lambda: handle.register_hooks(pack, abs), "modifying its input in place")


@paired("I9")
def test_packed_tensors_are_not_checked_for_changes(lib: Any) -> Any:
    x = leaf(lib, 3).detach()
    w = leaf(lib, 3, seed=1)
    with lib.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
        y = (w * x).sum()
    x.fill_(7)
    y.backward()
    return w.grad


@paired("I10", "F5")
def test_an_unpacked_tensor_is_in_the_place_of_the_packed_one(lib: Any) -> Any:
    hooks, x = Recorder(lib), leaf(lib, 3)
    y = x * 2
    with hooks():
        product, power, constant = x * y, y.exp(), y * x.detach()
    node = product.grad_fn
    input_ = node._saved_self
    inner, result, plain = node._saved_other, power.grad_fn._saved_result, constant.grad_fn
    assert input_ is not x
    assert inner.grad_fn is y.grad_fn
    assert result.grad_fn is power.grad_fn
    (through,) = lib.autograd.grad(input_.sum(), input_)
    (inner.sum() + input_.sum()).backward()
    return input_, inner, result, plain._saved_other, inner.output_nr, through, x.grad


@paired("I11")
def test_what_hooks_raise_arrives(lib: Any) -> Any:
    x = leaf(lib, 3)

    class MyError(ValueError):
        pass

    def fail(_: Any) -> Any:
        raise MyError("mine")

    def record() -> None:
        with lib.autograd.graph.saved_tensors_hooks(fail, abs):
            x.exp()

    packing = error_of(record, "mine")
    with lib.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), fail):
        y = x.exp().sum()
    return packing, error_of(y.backward, "mine"), x.grad


# ---------------------------------------------------------------------- ready-made hooks (I12, I13)


def _enter(context: Any) -> Callable[[], Any]:
    def enter() -> None:
        with context:
            pass

    return enter


@paired("I12")
def test_hooks_can_be_forbidden(lib: Any) -> Any:
    graph = lib.autograd.graph
    hooks = graph.saved_tensors_hooks(abs, abs)
    errors = []
    with graph.disable_saved_tensors_hooks("outer"):
        errors.append(error_of(_enter(hooks), "outer"))
        with graph.disable_saved_tensors_hooks("inner"):
            errors.append(error_of(_enter(graph.save_on_cpu()), "inner"))
        errors.append(error_of(_enter(hooks), "outer"))
    with hooks:
        errors.append(error_of(_enter(graph.disable_saved_tensors_hooks("late")), "late"))
    _enter(hooks)()
    return errors


@paired("I12")
def test_forbidding_is_no_matter_of_one_tensor(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * x
    with lib.autograd.graph.disable_saved_tensors_hooks("no"):
        y.grad_fn._raw_saved_self.register_hooks(lambda t: t.detach(), lambda t: t)
        y.sum().backward()
    return x.grad


@paired("I13")
def test_saving_on_the_cpu(lib: Any) -> Any:
    gradients = []
    for pin_memory in (False, True):
        x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
        with lib.autograd.graph.save_on_cpu(pin_memory=pin_memory):
            y = ((x * w).exp() * x).sum()
        assert x is not y.grad_fn.next_functions[0][0]._saved_other
        y.backward()
        gradients += [x.grad, w.grad]
    return gradients


@paired("I13")
def test_pinned_memory_is_a_copy(lib: Any) -> Any:
    x, w = leaf(lib, 3).detach(), leaf(lib, 3, seed=1)
    with lib.autograd.graph.save_on_cpu(pin_memory=True):
        y = (x * w).sum()
    x.zero_()
    y.backward()
    return w.grad


@paired("I14")
def test_saved_tensors_may_be_changed_where_that_is_allowed(lib: Any) -> Any:
    w, x = leaf(lib, 3), leaf(lib, 3, seed=1).detach()
    with lib.autograd.graph.allow_mutation_on_saved_tensors():
        before = (w * x).sum()
        x.mul_(2)
        between = (w * x).exp()
        x.sub_(3)
        total = between.sum()
        with lib.no_grad():
            between.zero_()
        after = (w * x).sum()
        gradients = [lib.autograd.grad(y, w, retain_graph=True) for y in (before, total, after)]
        again = lib.autograd.grad(before, w)
    return gradients, again, x


@paired("I14", torch=False)  # torch overlooks that the view and its base share memory
def test_a_saved_view_is_cloned_when_its_base_changes(lib: Any) -> Any:
    w, x = leaf(lib, 3), leaf(lib, 4, 3, seed=1).detach()
    with lib.autograd.graph.allow_mutation_on_saved_tensors():
        y, old = (w * x[1]).sum(), x[1].clone()
        x.mul_(2)
        (grad,) = lib.autograd.grad(y, w)
    assert (grad == old).all()
    return grad


@paired("I14", "I3")
def test_recorded_changes_of_saved_tensors(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    with lib.autograd.graph.allow_mutation_on_saved_tensors():
        y = x * 1.5
        total = (y * w).sum()
        y.exp_()
        total = total + (y * y).sum()
        y.mul_(w)
        y.mul_(y)
        (total + y.sum()).backward()
    return x.grad, w.grad, y


@paired("I14")
def test_each_old_value_has_its_own_clone(lib: Any) -> Any:
    w, x = leaf(lib, 3), leaf(lib, 3, seed=1).detach()
    with lib.autograd.graph.allow_mutation_on_saved_tensors():
        total = 0.0
        for _ in range(4):
            total = total + (w * x).sum() + (x * w).sum()
            x.add_(1)
        total.backward()
    return w.grad


@paired("I14")
def test_where_the_allowance_ends(lib: Any) -> Any:
    allow = lib.autograd.graph.allow_mutation_on_saved_tensors
    x = leaf(lib, 3)
    with allow():
        nested = error_of(_enter(allow()), "contexts cannot be nested")
    with allow():
        y = x.exp().sum()
        z = (x * x).sum()
        z.backward()
    outside = error_of(y.backward, "Trying to backward outside of the")
    return nested, outside, x.grad


@paired("I14", torch=False)  # its optimizers are not those of mpgrad
def test_an_optimizer_may_step_between_forward_and_backward(lib: Any) -> Any:
    w = leaf(lib, 3)
    w.grad = lib.ones(3, dtype=lib.float64)
    old = w.detach().clone()
    with lib.autograd.graph.allow_mutation_on_saved_tensors():
        y = (w * w).sum()
        lib.optim.SGD([w], lr=0.5).step()
        (grad,) = lib.autograd.grad(y, w)
    assert (w == old - 0.5).all()
    assert (grad == 2 * old).all()
    return grad


@paired("I15")
def test_python_numbers_are_not_packed(lib: Any) -> Any:
    hooks, x = Recorder(lib), leaf(lib, 3)
    with hooks():
        y = (x * 2.0 + 1.0) / 4.0
    y.sum().backward()
    return hooks.packed, x.grad


@paired("I16")
def test_packed_graphs_can_be_differentiated_twice(lib: Any) -> Any:
    hooks, x, w = Recorder(lib), leaf(lib, 3), leaf(lib, 3, seed=1)
    with hooks():
        y = ((x * w).exp() * x).sum()
    (first,) = lib.autograd.grad(y, x, create_graph=True)
    (first * first).sum().backward()
    assert hooks.unpacked > 0
    return first, x.grad, w.grad


@paired("I16")
def test_a_backward_that_is_recorded_packs_what_it_saves(lib: Any) -> Any:
    """Hooks that are in force during backward apply to the graph of the gradient."""
    hooks, x, w = Recorder(lib), leaf(lib, 3), leaf(lib, 3, seed=1)
    y = (x.sin() * w).sum()
    with hooks():
        first = lib.autograd.grad(y, (x, w), create_graph=True)
    count, hooks.unpacked = len(hooks.packed), 0
    assert count > 0
    (first[0].exp().sum() + (first[1] * x).sum()).backward()
    assert hooks.unpacked > 0
    assert len(hooks.packed) == count
    return first, x.grad, w.grad


@paired("I16")
def test_third_derivatives_through_hooks(lib: Any) -> Any:
    hooks, x = Recorder(lib), leaf(lib, 3)
    with hooks():
        y = x.sin() * x.exp()
        (first,) = lib.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = lib.autograd.grad(first.sum(), x, create_graph=True)
        (third,) = lib.autograd.grad(second.sum(), x)
    return first, second, third


@paired("I16", "H25")
def test_a_function_whose_tensors_are_packed_can_be_differentiated_twice(lib: Any) -> Any:
    class Cube(lib.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grad * 3 * x * x

    hooks, x = Recorder(lib), leaf(lib, 3)
    with hooks():
        y = Cube.apply(x * 2)
    (first,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    first.sum().backward()
    return first, x.grad


@paired("I16", "I8")
def test_one_packed_tensor_in_a_double_backward(lib: Any) -> Any:
    x, w, modes = leaf(lib, 3), leaf(lib, 3, seed=1), []

    def unpack(tensor: Any) -> Any:
        modes.append(lib.is_grad_enabled())
        return tensor * 1

    y = x * w
    y.grad_fn._raw_saved_other.register_hooks(lambda t: t.detach(), unpack)
    (first,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    lib.autograd.grad(y.sum(), x, retain_graph=True)
    (first * first).sum().backward()
    return first, x.grad, w.grad, modes


@paired("I17")
def test_hooks_entered_and_left_while_unpacking(lib: Any) -> Any:
    x, inner = leaf(lib, 3), Recorder(lib)

    def unpack(tensor: Any) -> Any:
        with inner(), lib.enable_grad():
            z = (leaf(lib, 2) ** 2).sum()
        z.backward()
        return tensor

    with lib.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), unpack):
        y = (x * x).sum()
        y.backward()
        after = x.exp()
    return len(inner.packed), inner.unpacked, x.grad, after


@paired("I7", "H25")
def test_what_a_function_saves_is_packed_too(lib: Any) -> Any:
    class Cube(lib.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            result = x * x * x
            ctx.save_for_backward(x, result)
            return result

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            x, result = ctx.saved_tensors
            assert result.shape == x.shape
            return grad * 3 * x * x

    hooks, x = Recorder(lib), leaf(lib, 3)
    with hooks():
        y = Cube.apply(x)
    saved = y.grad_fn.saved_tensors
    assert saved[1].grad_fn is y.grad_fn
    y.sum().backward()
    return hooks.packed, hooks.unpacked, x.grad, saved


@paired("H25", "I8")
def test_hooks_on_what_a_function_saved(lib: Any) -> Any:
    class Twice(lib.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grad * x

    x = leaf(lib, 3)
    y = Twice.apply(x)
    (handle,) = y.grad_fn._raw_saved_tensors
    handle.register_hooks(lambda t: t.detach() * 5, lambda t: t)
    y.sum().backward()
    return x.grad, error_of(lambda: y.grad_fn._raw_saved_tensors, "a second time")


# ---------------------------------------------------------------------- lifetime (E1 to E9)


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


@row("I7")
@pytest.mark.process
def test_packed_nodes_run_in_the_calling_process(process_engine: mg.Engine) -> None:
    x = leaf(mg, 3)
    with mg.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
        y = x.exp()
    nodes = process_engine.explain((y * y).sum()).nodes
    where = {node.name: (node.where, node.reason) for node in nodes}
    assert where["ExpBackward"][0] == "client"
    assert "unpack" in where["ExpBackward"][1]
    assert where["MulBackward"][0] == "worker"
