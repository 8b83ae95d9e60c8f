"""Group H: custom Functions, where backward runs in the caller and where it runs on a worker."""

from __future__ import annotations

import gc
import importlib
import os
import warnings
import weakref
from typing import Any

import pytest

import mpgrad as mg
from tests.semantics.functions import (
    PLACES,
    define,
    double,
    doubled_in_place,
    slope_of_squares,
    squares,
    twice_the_gradient,
)
from tests.semantics.paired import error_of, leaf, paired, row, values

# ---------------------------------------------------------------------- forward and apply


@paired("H1")
def test_apply_records_one_node_for_all_of_forward(lib: Any) -> Any:
    seen = []

    def forward(ctx: Any, x: Any, power: int) -> Any:
        seen.append(lib.is_grad_enabled())
        ctx.power = power
        ctx.save_for_backward(x)
        return ((x * x) * 1.5) ** power

    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * ctx.power * (1.5 * x * x) ** (ctx.power - 1) * 3 * x, None

    x = leaf(lib, 3)
    results = []
    for place in PLACES:
        x.grad = None
        y = define(lib, forward, backward, run_on=place).apply(x, 2)
        y.sum().backward()
        edges = [node is not None for node, _ in y.grad_fn.next_functions]
        results.append((y, x.grad, edges, y.grad_fn.name()))
    return seen, results


@paired("H1")
def test_only_tensors_that_are_arguments_themselves_are_tracked(lib: Any) -> Any:
    x, y = leaf(lib, 2), leaf(lib, 2, seed=1)
    custom = define(
        lib, lambda ctx, x, others: x * others[0] * others[1]["y"], lambda ctx, grad: (grad, None)
    )
    out = custom.apply(x, [y, {"y": y}])
    out.sum().backward()
    alone = custom.apply(x.detach(), [y, {"y": y}])
    return out, x.grad, y.grad, alone


@paired("H1")
def test_a_non_static_forward_is_refused_and_an_instance_warned_about(lib: Any) -> Any:
    class Legacy(lib.autograd.Function):
        def forward(self, x: Any) -> Any:
            return x

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        instance = Legacy()
    kinds = [warning.category.__name__ for warning in caught]
    assert "should not be instantiated" in str(caught[0].message)
    words = "Legacy autograd function with non-static forward"
    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        Legacy(leaf(lib, 2), scale=1)
    return kinds, error_of(lambda: instance(leaf(lib, 2)), words)


@paired("H1")
def test_a_forward_that_is_missing(lib: Any) -> Any:
    class Empty(lib.autograd.Function):
        pass

    return error_of(lambda: Empty.apply(leaf(lib, 2)), "You must implement the forward function")


@paired("H1")
def test_keyword_arguments_are_put_in_their_positions(lib: Any) -> Any:
    seen = []

    def backward(ctx: Any, grad: Any) -> Any:
        seen.append(ctx.needs_input_grad)
        return grad, *[grad * 3] * (len(ctx.needs_input_grad) - 1)

    custom = define(lib, lambda ctx, x, factor=1: x * factor, backward)
    x, factor = leaf(lib, 2), leaf(lib, 2, seed=1)
    custom.apply(x, factor=factor).sum().backward()
    custom.apply(x).sum().backward()
    keyword_only = define(lib, lambda ctx, x, *, factor=1: x, backward)
    return (
        (x.grad, factor.grad, seen),
        error_of(lambda: custom.apply(x, power=2), "unexpected keyword argument 'power'"),
        error_of(lambda: keyword_only.apply(x, factor=2), "unexpected keyword argument 'factor'"),
        error_of(lambda: custom.apply(), "missing"),
    )


def with_setup(lib: Any, forward: Any, setup: Any, backward: Any, **attributes: Any) -> Any:
    return define(lib, forward, backward, setup_context=staticmethod(setup), **attributes)


@paired("H2")
def test_setup_context_gets_inputs_with_their_defaults_and_the_output(lib: Any) -> Any:
    seen = []

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.power = inputs
        seen.append((len(inputs), output.grad_fn, lib.is_grad_enabled()))
        ctx.save_for_backward(x)

    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * ctx.power * x ** (ctx.power - 1), None

    x = leaf(lib, 3)
    grads = []
    for place in PLACES:
        custom = with_setup(lib, lambda x, power=3: x**power, setup, backward, run_on=place)
        grads += lib.autograd.grad(custom.apply(x).sum(), x)
        grads += lib.autograd.grad(custom.apply(x, power=2).sum(), x)
    return grads, seen


@paired("H2")
def test_setup_context_may_not_save_an_input_that_is_returned_as_is(lib: Any) -> Any:
    custom = with_setup(
        lib,
        lambda x: x,
        lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
        twice_the_gradient,
    )
    return error_of(lambda: custom.apply(leaf(lib, 2)), "returned as-is", "setup_context")


@paired("H3")
def test_vjp_is_another_name_of_backward(lib: Any) -> Any:
    x = leaf(lib, 2)
    results = []
    for place in PLACES:

        class Custom(lib.autograd.Function):
            run_on = place
            forward = staticmethod(squares)
            vjp = staticmethod(slope_of_squares)

        results += lib.autograd.grad(Custom.apply(x).sum(), x)
    return results


@paired("H3")
def test_backward_and_vjp_exclude_each_other_and_one_must_be_there(lib: Any) -> Any:
    class Neither(lib.autograd.Function):
        forward = staticmethod(double)

    class Both(Neither):
        backward = vjp = staticmethod(twice_the_gradient)

    x = leaf(lib, 2)
    return (
        error_of(lambda: Neither.apply(x).sum().backward(), "either the backward or vjp method"),
        error_of(lambda: Both.apply(x).sum().backward(), "Implementing both 'backward' and 'vjp'"),
        Neither.apply(x.detach()),
    )


# ---------------------------------------------------------------------- saved tensors


@paired("H4")
def test_tensors_and_none_are_saved_in_their_order(lib: Any) -> Any:
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        product = x * y
        ctx.save_for_backward(x, None, product, y)
        return product * 2

    def backward(ctx: Any, grad: Any) -> Any:
        x, nothing, product, y = ctx.saved_tensors
        assert nothing is None
        assert not product.requires_grad
        assert [x.requires_grad, y.requires_grad] == [True, False]
        return grad * y * 2 + product, None

    x, y = leaf(lib, 3), lib.tensor(values(3, seed=1))
    return [
        lib.autograd.grad(define(lib, forward, backward, run_on=place).apply(x, y).sum(), x)
        for place in PLACES
    ]


@paired("H4")
def test_only_tensors_can_be_saved(lib: Any) -> Any:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x, 3)
        return x * 2

    custom = define(lib, forward, twice_the_gradient)
    words = "save_for_backward can only save variables, but argument 1 is of type int"
    # Where nothing is recorded, nothing is saved.
    return error_of(lambda: custom.apply(leaf(lib, 2)), words), custom.apply(lib.ones(2))


@paired("H4")
def test_the_last_call_of_save_for_backward_counts(lib: Any) -> Any:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        ctx.save_for_backward(x * 3, x)
        return x * 2

    y = define(lib, forward, twice_the_gradient).apply(leaf(lib, 2))
    return [tensor.detach() for tensor in y.grad_fn.saved_tensors]


@paired("H5")
def test_saved_tensors_can_be_read_twice_but_not_after_they_were_freed(lib: Any) -> Any:
    def backward(ctx: Any, grad: Any) -> Any:
        (once,) = ctx.saved_tensors
        (again,) = ctx.saved_tensors
        return grad * once + again

    x = leaf(lib, 2)
    results = []
    for place in PLACES:
        y = define(lib, squares, backward, run_on=place).apply(x).sum()
        y.backward(retain_graph=True)
        y.backward()
        results.append(error_of(y.backward, "backward through the graph a second time"))
        node = define(lib, squares, backward, run_on=place).apply(x).grad_fn
        assert node.saved_tensors[0] is x
    return x.grad, results


@paired("H5")
def test_a_saved_tensor_that_was_changed_in_place(lib: Any) -> Any:
    results = []
    for place in PLACES:
        x = leaf(lib, 2)
        y = define(lib, squares, slope_of_squares, run_on=place).apply(x).sum()
        with lib.no_grad():
            x.add_(1)
        results.append(error_of(y.backward, "modified by an inplace operation", "version 1"))
    return results


@paired("H5")
def test_a_saved_output_comes_back_with_its_history(lib: Any) -> Any:
    seen = []

    def forward(ctx: Any, x: Any) -> Any:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    def backward(ctx: Any, grad: Any) -> Any:
        (y,) = ctx.saved_tensors
        seen.append((y.requires_grad, y.grad_fn.name()))
        return grad * y

    x = leaf(lib, 3)
    y = define(lib, forward, backward).apply(x)
    y.sum().backward()
    node = weakref.ref(y.grad_fn)
    gc.disable()
    try:
        del y
        assert node() is None, "Node, ctx and saved output form a cycle"
    finally:
        gc.enable()
    return x.grad, seen


@paired("H6")
def test_clear_saved_tensors_on_access(lib: Any) -> Any:
    words = "saved_tensors can only be accessed once"

    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        error_of(lambda: ctx.saved_tensors, words)
        return grad * x

    x = leaf(lib, 3)
    results = []
    for place in PLACES:
        custom = define(lib, squares, backward, run_on=place, clear_saved_tensors_on_access=True)
        y = custom.apply(x).sum()
        y.backward(retain_graph=True)
        results.append(error_of(lambda y=y: y.backward(retain_graph=True), words))
        y = custom.apply(x).sum()
        y.backward()
        results.append(error_of(y.backward, words))
    return x.grad, results


@paired("H6")
def test_tensors_that_nobody_reads_are_not_cleared(lib: Any) -> Any:
    x = leaf(lib, 3)
    for place in PLACES:
        custom = define(
            lib, squares, twice_the_gradient, run_on=place, clear_saved_tensors_on_access=True
        )
        y = custom.apply(x).sum()
        y.backward(retain_graph=True)
        y.backward(retain_graph=True)
        assert len(custom.apply(x).grad_fn.saved_tensors) == 1
    return x.grad


@paired("H6")
def test_a_tensor_that_is_cleared_on_access_is_freed_within_backward(lib: Any) -> Any:
    alive = []

    def forward(ctx: Any, x: Any) -> Any:
        kept = x * 2
        alive.append(weakref.ref(kept))
        ctx.save_for_backward(kept)
        return kept * x

    def backward(ctx: Any, grad: Any) -> Any:
        (kept,) = ctx.saved_tensors
        grad = grad * kept
        del kept
        alive[:] = [reference() is not None for reference in alive]
        return grad

    x = leaf(lib, 3)
    custom = define(lib, forward, backward, clear_saved_tensors_on_access=True)
    custom.apply(x).sum().backward()
    return x.grad, alive


@paired("H7")
def test_needs_input_grad_has_a_bool_per_argument(lib: Any) -> Any:
    def forward(ctx: Any, x: Any, y: Any, number: Any) -> Any:
        ctx.forward_needs = ctx.needs_input_grad
        return x * y * number

    def backward(ctx: Any, grad: Any) -> Any:
        assert ctx.needs_input_grad == ctx.forward_needs == (True, False, False)
        return grad, None, None

    x, y = leaf(lib, 2), lib.ones(2)
    for place in PLACES:
        out = define(lib, forward, backward, run_on=place).apply(x, y, 2.0)
        out.sum().backward()
    with lib.no_grad():
        seen = []
        define(lib, lambda ctx, *a: seen.append(ctx.needs_input_grad), None).apply(x, y, 3)
    return x.grad, out.grad_fn.needs_input_grad, seen


# ---------------------------------------------------------------------- ctx and Node


@paired("H22")
def test_attributes_of_ctx_live_as_long_as_its_node(lib: Any) -> Any:
    class Thing:
        value = 3.0

    things = []

    def forward(ctx: Any, x: Any) -> Any:
        ctx.thing = Thing()
        things.append(weakref.ref(ctx.thing))
        return x * 2

    x = leaf(lib, 2)
    y = define(lib, forward, lambda ctx, grad: grad * ctx.thing.value).apply(x)
    y.sum().backward()
    alive = things[0]() is not None
    found = y.grad_fn.thing.value
    del y
    gc.collect()
    return x.grad, alive, found, things[0]() is None


@paired("H22")
def test_what_backward_keeps_on_ctx_is_there_for_the_next_one(lib: Any) -> Any:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.calls = 0
        return x * 2

    def backward(ctx: Any, grad: Any) -> Any:
        ctx.calls = ctx.calls + 1
        return grad * ctx.calls

    x = leaf(lib, 2)
    y = define(lib, forward, backward).apply(x).sum()
    y.backward(retain_graph=True)
    y.backward(retain_graph=True)
    return x.grad, y.grad_fn.next_functions[0][0].calls


@paired("H22", "H30")
def test_the_node_knows_its_name_and_notes(lib: Any) -> Any:
    contexts = []

    class Renamed(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            contexts.append(ctx)
            return x * 2

        backward = staticmethod(twice_the_gradient)

    y = Renamed.apply(leaf(lib, 2))
    y.grad_fn.metadata["note"] = 1
    ctx = contexts[0]
    assert "RenamedBackward" in repr(y.grad_fn)
    assert not hasattr(y.grad_fn, "never_set")
    return (
        y.grad_fn.name(),
        ctx.name(),
        ctx.metadata,
        [node is not None for node, _ in ctx.next_functions],
        ctx.needs_input_grad,
    )


class Odd(Exception):
    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)
        self.number = number


@paired("H23")
def test_an_exception_reaches_the_caller_as_it_is(lib: Any) -> Any:
    def fails(ctx: Any, grad: Any) -> Any:
        raise Odd(7, "why")

    x = leaf(lib, 2)
    errors = []
    for place in PLACES:
        y = define(lib, double, fails, run_on=place).apply(x).sum()
        error = error_of(y.backward, "why")
        errors += [error, error.number, error.args, x.grad]
        missing = define(lib, double, lambda ctx, grad: {}["key"], run_on=place).apply(x).sum()
        errors.append(error_of(missing.backward, "key"))
    return errors


@paired("H24")
def test_a_ctx_kept_after_backward(lib: Any) -> Any:
    contexts = []

    def forward(ctx: Any, x: Any) -> Any:
        contexts.append(ctx)
        ctx.note = "kept"
        return squares(ctx, x)

    def backward(ctx: Any, grad: Any) -> Any:
        contexts.append(ctx)
        return slope_of_squares(ctx, grad)

    y = define(lib, forward, backward).apply(leaf(lib, 2)).sum()
    y.backward()
    words = "Trying to backward through the graph a second time"
    freed = [error_of(lambda ctx=ctx: ctx.saved_tensors, words) for ctx in contexts]
    del y
    gc.collect()
    return freed, [ctx.note for ctx in contexts], [ctx.needs_input_grad for ctx in contexts]


@paired("H24")
def test_a_ctx_that_outlives_its_output_still_has_its_inputs(lib: Any) -> Any:
    contexts = []

    def forward(ctx: Any, x: Any) -> Any:
        contexts.append(ctx)
        return squares(ctx, x)

    x = leaf(lib, 2)
    y = define(lib, forward, slope_of_squares).apply(x).sum()
    y.backward(retain_graph=True)
    del y
    gc.collect()
    (ctx,) = contexts
    (saved,) = ctx.saved_tensors
    return saved is x, ctx.needs_input_grad, x.grad


@paired("H22", "H24")
def test_hooks_on_ctx_are_hooks_on_its_node(lib: Any) -> Any:
    seen = []

    def forward(ctx: Any, x: Any) -> Any:
        ctx.register_prehook(lambda grads: seen.append(("before", *grads)))
        ctx.register_hook(lambda ins, outs: seen.append(("after", *ins, *outs)))
        return x * 2

    x = leaf(lib, 2)
    define(lib, forward, twice_the_gradient).apply(x).sum().backward()
    return seen, x.grad


@paired("H27")
def test_the_legacy_base_for_functions_that_work_in_place(lib: Any) -> Any:
    base = lib.autograd.function.InplaceFunction

    class Custom(base):
        forward = staticmethod(doubled_in_place)
        backward = staticmethod(twice_the_gradient)

    x = leaf(lib, 2)
    y = Custom.apply(x * 1)
    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        flags = base().inplace, base(True).inplace
    return y, lib.autograd.grad(y.sum(), x), flags, issubclass(base, lib.autograd.Function)


@row("H28")
@pytest.mark.process
def test_two_functions_run_in_two_processes_at_once(process_engine: mg.Engine) -> None:
    # No torch program: there both would wait for one GIL, in one process.
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 0 + os.getpid()

    custom = define(mg, lambda ctx, x: x * 2, backward, run_on="worker")
    leaves = [mg.ones(3, dtype=mg.float64).requires_grad_() for _ in range(8)]
    sum(custom.apply(x).sum() for x in leaves).backward()
    assert {int(x.grad[0].item()) for x in leaves} <= set(process_engine.worker_pids())
    assert os.getpid() not in {int(x.grad[0].item()) for x in leaves}


@paired("H29")
def test_backward_may_differentiate_something_itself(lib: Any) -> Any:
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        with lib.enable_grad():
            inner = x.detach().requires_grad_()
            cube = (inner * inner * inner).sum()
        (slope,) = lib.autograd.grad(cube, inner)
        return grad * slope

    x = leaf(lib, 3)
    return [
        lib.autograd.grad(define(lib, squares, backward, run_on=place).apply(x).sum(), x)
        for place in PLACES
    ]


@paired("H29")
def test_backward_may_call_backward_on_a_tensor_of_its_own(lib: Any) -> Any:
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        with lib.enable_grad():
            inner = x.detach().requires_grad_()
            (inner.exp() * grad).sum().backward()
        return inner.grad

    x = leaf(lib, 3)
    results = []
    for place in PLACES:
        custom = define(lib, squares, backward, run_on=place)
        results += lib.autograd.grad((custom.apply(custom.apply(x)) * 3).sum(), x)
    return results


@paired("H1", "H29")
def test_a_function_that_calls_another_one(lib: Any) -> Any:
    inner = define(lib, squares, slope_of_squares)
    outer = define(lib, lambda ctx, x: inner.apply(x) * 2, twice_the_gradient)
    x = leaf(lib, 3)
    y = outer.apply(x)
    nodes = [node.name().rpartition(":")[2] for node, _ in y.grad_fn.next_functions]
    return y, nodes, lib.autograd.grad(y.sum(), x)


@paired("H20")
def test_backward_runs_with_recording_off(lib: Any) -> Any:
    def backward(ctx: Any, grad: Any) -> Any:
        assert not lib.is_grad_enabled()
        assert not grad.requires_grad
        return grad * 2

    x = leaf(lib, 3)
    return [
        lib.autograd.grad(define(lib, squares, backward, run_on=place).apply(x).sum(), x)
        for place in PLACES
    ]


# torch 2.6 says so; 2.13 takes some of these, and crashes on others.
@paired("H1", torch=False)
def test_an_instance_is_no_node(lib: Any) -> Any:
    class Same(lib.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad

    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        instance = Same()
    found = [
        error_of(lambda: instance._register_hook_dict(leaf(lib, 1)), "is invalid"),
        error_of(lambda: instance.register_hook(print), "is invalid"),
        error_of(lambda: instance.next_functions, "is invalid"),
        error_of(lambda: instance.name(), "is invalid"),
    ]
    found.append(error_of(lambda: instance.metadata, "PyNode has already been deallocated"))
    return found, error_of(lambda: instance.of_nobody), Same._backward_cls.__name__


@paired("H1")
def test_resize_of_old(lib: Any) -> Any:
    resize = importlib.import_module(f"{lib.__name__}.autograd._functions").Resize
    x = leaf(lib, 2, 3)
    y = resize.apply(x, (3, 2))
    (y * y).sum().backward()
    return y, x.grad, error_of(lambda: resize.apply(x, (5,)), "requested resize to 5")


@paired("H5")
def test_saved_variables_is_an_old_name(lib: Any) -> Any:
    class Times(lib.autograd.Function):  # type: ignore[misc, name-defined]
        run_on = "client"

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return 2 * grad * ctx.saved_variables[0]

    x = leaf(lib, 2)
    with pytest.warns(DeprecationWarning, match="'saved_variables' is deprecated"):
        Times.apply(x).sum().backward()
    return x.grad
