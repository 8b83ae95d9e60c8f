"""Group I: hooks that pack and unpack what forward saves."""

from __future__ import annotations

import threading
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


# ---------------------------------------------------------------------- combinations (I15 to I17)


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


@row("I7")
@pytest.mark.process
def test_packed_nodes_run_in_the_calling_process(process_engine: mg.Engine) -> None:
    x = leaf(mg, 3)
    with mg.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
        y = x.exp()
    nodes = process_engine.explain((y * y).sum()).nodes
    where = {node.name: (node.where, node.reason) for node in nodes}
    assert where["ExpBackward0"][0] == "client"
    assert "unpack" in where["ExpBackward0"][1]
    assert where["MulBackward0"][0] == "worker"


@paired("I17")
def test_hooks_left_or_entered_by_unpack_are_so_during_that_backward_alone(lib: Any) -> Any:
    def leaving(tensor: Any) -> Any:
        outer.__exit__()
        return tensor

    hooks = lib.autograd.graph.saved_tensors_hooks
    outer, seen = hooks(lambda t: t, leaving), []
    inner = hooks(lambda t: t, lambda t: seen.append("unpack") or t)
    for _ in range(2):
        with inner:
            outer.__enter__()
            leaf(lib, 3).sin().sum().backward()
    left = 0
    while left < 2:  # what each round has left behind
        outer.__exit__()
        left += 1
    y = leaf(lib, 2).exp()
    y.grad_fn._raw_saved_result.register_hooks(lambda t: t, lambda t: t)
    return seen, left


@paired("I7", "G13")
def test_a_post_hook_registered_by_unpack_sees_no_grad_outputs(lib: Any) -> Any:
    node_of = lib._C._current_autograd_node
    shown = []

    def unpack(tensor: Any) -> Any:
        def hook(inputs: Any, outputs: Any) -> Any:
            shown.append(len(outputs))
            return tuple(None if value is None else value / 2 for value in inputs)

        node_of().register_hook(hook)
        return tensor

    x = leaf(lib, 3, 3)
    with lib.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        x.sin().sum().backward()
    return shown, x.grad


@paired("I8")
def test_both_hooks_of_a_saved_tensor_are_needed(lib: Any) -> Any:
    handle = leaf(lib, 2).exp().grad_fn._raw_saved_result
    return (
        error_of(lambda: handle.register_hooks(lambda t: t), "incompatible function arguments"),
        error_of(lambda: handle.register_hooks(1, 1), "incompatible function arguments"),
        isinstance(handle, lib._C._autograd.SavedTensor),
    )


@paired("I14")
def test_what_was_cloned_can_be_counted(lib: Any) -> Any:
    counts = []
    with lib.autograd.graph.allow_mutation_on_saved_tensors() as clones:

        def note() -> None:
            counts.append((len(clones.tid_to_weakhandle), len(clones.cloned)))

        y = leaf(lib, 3) * 1
        out = (y**2).sum()
        note()
        y.sin_()
        note()
        del out
        note()
        kept = (y**2).sum()
        y.sin_()
        note()
    note()
    return counts, kept.requires_grad
