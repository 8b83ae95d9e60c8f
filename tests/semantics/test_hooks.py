"""Group G: hooks on tensors, on Nodes and on leaves: what they see, what they may change."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
import warnings
from typing import Any

import pytest

from tests.semantics.paired import error_of, leaf, paired


def edge_node(lib: Any, tensor: Any) -> Any:
    """The Node that a tensor's gradient flows into: a leaf's AccumulateGrad, else its grad_fn."""
    return lib.autograd.graph.get_gradient_edge(tensor).node


# ---------------------------------------------------------------------- tensor hooks


@paired("G1")
def test_a_tensor_hook_sees_and_replaces_the_gradient(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * 2
    got: list[Any] = []
    y.register_hook(got.append)
    handle = y.register_hook(lambda grad: grad * 10)
    y.register_hook(got.append)
    y.sum().backward(retain_graph=True)
    handle.remove()
    y.sum().backward()
    assert len(got) == 4
    return got, x.grad


@paired("G1")
def test_a_hook_that_returns_none_keeps_the_gradient(lib: Any) -> Any:
    x = leaf(lib, 3)
    x.register_hook(lambda grad: None)
    (x * x).sum().backward()
    return x.grad


@paired("G1", "G19")
def test_a_hook_on_a_leaf_outlives_its_graph(lib: Any) -> Any:
    x = leaf(lib, 2)
    got: list[Any] = []
    x.register_hook(lambda grad: got.append(grad.clone()))
    for scale in (1.0, 2.0):
        (x * scale + x.exp()).sum().backward()
    assert len(got) == 2
    return got, x.grad


@paired("G1")
def test_hooks_of_tensors_that_need_no_gradient(lib: Any) -> Any:
    words = "cannot register a hook on a tensor that doesn't require gradient"
    constant = lib.ones(2)
    return (
        error_of(lambda: constant.register_hook(lambda grad: grad), words),
        error_of(lambda: constant.register_post_accumulate_grad_hook(lambda p: None), words),
        error_of(
            lambda: (leaf(lib, 2) * 2).register_post_accumulate_grad_hook(lambda p: None),
            "post accumulate grad hooks cannot be registered on non-leaf tensors",
        ),
    )


@paired("G1")
def test_a_hook_may_change_its_gradient_in_place(lib: Any) -> Any:
    x = leaf(lib, 4)
    y = x * 3
    z = x * 5

    def doubles(grad: Any) -> None:
        grad.mul_(2)

    y.register_hook(doubles)
    (y * z).sum().backward()
    return x.grad


@paired("G2", "B5")
def test_tensor_hooks_run_once_where_only_the_gradient_is_asked_for(lib: Any) -> Any:
    x = leaf(lib, 2)
    y = x * 3
    log: list[str] = []
    y.register_hook(lambda grad: (log.append("y"), grad * 10)[1])
    x.register_hook(lambda grad: (log.append("x"), grad * 100)[1])
    edge_node(lib, y).register_prehook(lambda grads: log.append("never"))
    edge_node(lib, y).register_hook(lambda *grads: log.append("never"))
    edge_node(lib, x).register_prehook(lambda grads: log.append("x never"))
    loss = (y * y).sum()
    inner = lib.autograd.grad(loss, y, retain_graph=True)
    after_inner = list(log)
    outer = lib.autograd.grad(loss, x, retain_graph=True)
    assert after_inner == ["y"]
    return inner, outer, log, x.grad


@paired("B5", "B6")
def test_an_input_in_the_middle_is_captured_and_its_node_runs(lib: Any) -> Any:
    x = leaf(lib, 2)
    y = x * 3
    z = y * 5
    log: list[Any] = []
    y.register_hook(lambda grad: (log.append("tensor"), grad * 10)[1])
    edge_node(lib, y).register_prehook(lambda grads: (log.append("pre"), (grads[0] * 100,))[1])
    edge_node(lib, y).register_hook(lambda *grads: log.append("post"))
    grads = lib.autograd.grad(z.sum(), (y, x, z))
    assert log == ["tensor", "pre", "post"]
    return grads, log


@paired("B5", "G7")
def test_retain_grad_stores_what_the_last_tensor_hook_returns(lib: Any) -> Any:
    x = leaf(lib, 2)
    y = x * 3
    y.retain_grad()
    y.register_hook(lambda grad: grad * 10)
    edge_node(lib, y).register_prehook(lambda grads: (grads[0] * 7,))
    grads = lib.autograd.grad((y * 2).sum(), y)
    kept = y.grad
    z = leaf(lib, 2, seed=1) * 4
    z.retain_grad()
    (z * 2).sum().backward(retain_graph=True)
    first = z.grad
    (z * 2).sum().backward()
    assert z.grad is not first
    return grads, kept, first, z.grad


# ---------------------------------------------------------------------- Node hooks


@paired("G3")
def test_a_prehook_changes_what_the_node_runs_on(lib: Any) -> Any:
    x = leaf(lib, 2)
    y = x.exp()
    seen: list[Any] = []

    def triple(grads: Any) -> Any:
        assert isinstance(grads, tuple)
        seen.append(grads)
        return (grads[0] * 3,)

    first = y.grad_fn.register_prehook(triple)
    y.grad_fn.register_prehook(lambda grads: seen.append(grads))
    y.sum().backward(retain_graph=True)
    first.remove()
    y.sum().backward()
    return seen, x.grad


@paired("G3", "G5")
def test_what_a_prehook_may_return(lib: Any) -> Any:
    def backward_with(hook: Any) -> Any:
        y = leaf(lib, 2) * 3
        y.grad_fn.register_prehook(hook)
        return lambda: y.sum().backward()

    return (
        error_of(backward_with(lambda g: g[0]), "expected tuple, but hook returned 'Tensor'"),
        error_of(backward_with(lambda g: [g[0]]), "expected tuple, but hook returned 'list'"),
        error_of(
            backward_with(lambda g: (g[0], g[0])),
            "hook '<lambda>' has returned an incorrect number of values (got 2, but expected 1)",
        ),
        error_of(backward_with(lambda g: ()), "incorrect number of values (got 0, but expected 1)"),
        error_of(backward_with(lambda g: (1.0,)), "expected Variable, but hook returned 'float'"),
        error_of(
            backward_with(lambda g: (lib.ones(5, dtype=lib.float64),)),
            "hook '<lambda>' has changed the size of value",
        ),
        backward_with(lambda g: (None,))(),
    )


@paired("G4")
def test_a_post_hook_sees_both_sides_and_may_replace_one(lib: Any) -> Any:
    a, b = leaf(lib, 2), leaf(lib, 2, seed=1)
    y = a * b
    seen: list[Any] = []
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append((inputs, outputs)))
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 10, None))
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append((inputs, outputs)))
    (y * 2).sum().backward()
    return seen, a.grad, b.grad


@paired("G4", "G5")
def test_what_a_post_hook_may_return(lib: Any) -> Any:
    def backward_with(hook: Any) -> Any:
        y = leaf(lib, 2) * 3
        y.grad_fn.register_hook(hook)
        return lambda: y.sum().backward()

    return (
        error_of(backward_with(lambda i, o: i[0]), "expected tuple, but hook returned 'Tensor'"),
        error_of(
            backward_with(lambda i, o: (i[0],)),
            "hook '<lambda>' has returned an incorrect number of values (got 1, but expected 2)",
        ),
        error_of(
            backward_with(lambda i, o: (i[0], i[0])),
            "can't replace a None gradient with a non-None value",
        ),
        error_of(backward_with(lambda i, o: ("x", None)), "expected Variable, but hook returned"),
        backward_with(lambda i, o: (None, None))(),
    )


@paired("G5")
def test_what_a_tensor_hook_may_return(lib: Any) -> Any:
    class Callable:
        def __call__(self, grad: Any) -> Any:
            return lib.ones(5, dtype=lib.float64)

    def named(grad: Any) -> Any:
        return lib.ones(5, dtype=lib.float64)

    def backward_with(hook: Any) -> Any:
        y = leaf(lib, 2) * 3
        y.register_hook(hook)
        return lambda: y.sum().backward()

    size, kind = "has changed the size of value", "has changed the type of value"
    return (
        error_of(backward_with(named), f"hook 'named' {size}"),
        error_of(backward_with(functools.partial(named)), f"hook '<unknown>' {size}"),
        error_of(backward_with(Callable()), f"hook '<unknown>' {size}"),
        error_of(backward_with(lambda g: g.to(lib.float32)), f"hook '<lambda>' {kind}"),
        error_of(backward_with(lambda g: 1.0), "expected Variable, but hook returned 'float'"),
        error_of(backward_with(lambda g: (g,)), "expected Variable, but hook returned 'tuple'"),
    )


@paired("G3", "G4")
def test_hooks_on_the_node_of_a_function(lib: Any) -> Any:
    class Scale(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, factor: float) -> Any:
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * ctx.factor, None

    x = leaf(lib, 2)
    y = Scale.apply(x, 4.0)
    seen: list[Any] = []
    y.grad_fn.register_prehook(lambda grads: (grads[0] * 2,))
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append((inputs, outputs)))
    y.grad_fn.register_hook(lambda inputs, outputs: tuple(grad + 1 for grad in inputs))
    y.sum().backward()
    return seen, x.grad


def two_outputs(lib: Any) -> Any:
    """A Function whose Node has two inputs: the gradients of its two outputs."""

    class TwoOutputs(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, first: Any, second: Any) -> Any:
            return first * 2 + second * 3

    return TwoOutputs


@paired("G10", "G4")
def test_hooks_of_a_node_with_several_outputs(lib: Any) -> Any:
    x = leaf(lib, 4)
    first, second = two_outputs(lib).apply(x * 1)
    log: list[Any] = []
    second.register_hook(lambda grad: log.append(("second", grad)))
    first.register_hook(lambda grad: (log.append(("first", grad)), grad * 2)[1])
    first.grad_fn.register_prehook(lambda grads: log.append(("both", grads)))
    (first.sum() + 3 * second.sum()).backward()
    assert [name for name, _ in log] == ["second", "first", "both"]
    return log, x.grad


@paired("G10", "B13")
def test_hooks_see_none_where_no_gradient_flows(lib: Any) -> Any:
    x = leaf(lib, 4)
    first, second = two_outputs(lib).apply(x * 1)
    log: list[Any] = []
    second.register_hook(lambda grad: log.append(("second", grad)))
    second.retain_grad()
    first.grad_fn.register_prehook(lambda grads: log.append(("both", grads)))
    first.sum().backward()
    assert log[0] == ("second", None)
    return log, second.grad, x.grad


# ---------------------------------------------------------------------- leaves


@paired("G6")
def test_post_accumulate_hooks_see_the_sum_and_may_clear_it(lib: Any) -> Any:
    x, w = leaf(lib, 2), leaf(lib, 2, seed=1)
    seen: list[Any] = []

    def step(parameter: Any) -> None:
        assert parameter is w
        seen.append(parameter.grad.clone())
        with lib.no_grad():
            parameter.sub_(parameter.grad * 0.1)
        parameter.grad = None

    w.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        (x * w).sum().backward()
    return seen, x.grad, w, w.grad


@paired("G6")
def test_post_accumulate_hooks_return_nothing(lib: Any) -> Any:
    def backward_with(hook: Any) -> Any:
        x = leaf(lib, 2)
        x.register_post_accumulate_grad_hook(hook)
        return lambda: (x * 2).sum().backward()

    other = lib.zeros(2, dtype=lib.float64)
    return (
        error_of(backward_with(lambda p: other), "hooks should return None"),
        error_of(backward_with(lambda p: 5), "expected Variable, but hook returned 'int'"),
    )


@paired("G6", "G7")
def test_the_hooks_of_a_leaf_and_of_its_node(lib: Any) -> Any:
    x = leaf(lib, 2)
    node = edge_node(lib, x)
    log: list[Any] = []

    def grad_now() -> Any:
        return None if x.grad is None else x.grad.clone()

    x.register_hook(lambda grad: log.append("tensor 1"))
    node.register_hook(lambda inputs, outputs: log.append(("post", inputs, outputs, grad_now())))
    x.register_post_accumulate_grad_hook(lambda p: log.append(("post accumulate", grad_now())))
    node.register_prehook(lambda grads: (log.append(("pre", grad_now())), (grads[0] * 2,))[1])
    x.register_hook(lambda grad: log.append("tensor 2"))
    (x * 3).sum().backward()
    assert [entry if isinstance(entry, str) else entry[0] for entry in log] == [
        "tensor 1",
        "tensor 2",
        "pre",
        "post accumulate",
        "post",
    ]
    return log, x.grad


@paired("G6", "G7")
def test_a_post_hook_of_a_leafs_node_sees_what_became_of_its_gradient(lib: Any) -> Any:
    seen: list[Any] = []
    kept: list[Any] = []
    for keeps in (False, True):
        x = leaf(lib, 2)
        node = edge_node(lib, x)
        node.register_hook(lambda inputs, outputs: seen.append(outputs[0].clone()))
        if keeps:
            # Now .grad must not be what the hook has.
            x.register_hook(kept.append)
        x.register_post_accumulate_grad_hook(lambda p: (p.grad.mul_(-2), None)[1])
        (x * 3).sum().backward()
        seen.append(x.grad)
    assert len(seen) == 4
    return seen, kept


@paired("G6", "G2")
def test_what_runs_at_a_leaf_in_grad_and_in_backward(lib: Any) -> Any:
    x = leaf(lib, 2)
    node, log = edge_node(lib, x), []
    x.register_hook(lambda grad: log.append("tensor"))
    node.register_prehook(lambda grads: log.append("pre"))
    node.register_hook(lambda *grads: log.append("post"))
    x.register_post_accumulate_grad_hook(lambda p: log.append("post accumulate"))
    y = (x * 3).sum()
    lib.autograd.grad(y, x, retain_graph=True)
    in_grad = list(log)
    y.backward(inputs=[x])
    assert in_grad == ["tensor"]
    assert log[1:] == ["tensor", "pre", "post accumulate", "post"]
    return x.grad


@paired("G6", "G11", "D18")
def test_post_accumulate_hooks_under_create_graph(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    log: list[Any] = []
    x.register_post_accumulate_grad_hook(
        lambda p: log.append((p.grad.requires_grad, lib.is_grad_enabled()))
    )
    y = x * w
    y.retain_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the cycle between a leaf and its .grad
        (y * y * y).sum().backward(create_graph=True)
        (y * y).sum().backward(create_graph=True)
    second = lib.autograd.grad((x.grad * x.grad).sum() + y.grad.sum(), (x, w))
    assert log == [(True, True), (True, True)]
    found = x.grad, y.grad, second
    x.grad = w.grad = None
    return found


@paired("B13", "G6")
def test_hooks_run_on_undefined_gradients(lib: Any) -> Any:
    class Nothing(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return None

    x = leaf(lib, 2)
    y = x * 2
    log: list[Any] = []
    y.register_hook(lambda grad: log.append(("y", grad)))
    y.grad_fn.register_prehook(lambda grads: log.append(("pre", grads)))
    y.grad_fn.register_hook(lambda inputs, outputs: log.append(("post", inputs, outputs)))
    x.register_hook(lambda grad: log.append(("x", grad)))
    x.register_post_accumulate_grad_hook(lambda p: log.append(("accumulated", p.grad)))
    y.retain_grad()
    Nothing.apply(y).sum().backward()
    assert [entry[0] for entry in log] == ["y", "pre", "post", "x", "accumulated"]
    return log, y.grad, x.grad


# ---------------------------------------------------------------------- grad mode, errors


@paired("G11")
def test_hooks_run_with_recording_off(lib: Any) -> Any:
    x = leaf(lib, 2)
    y = x * x
    log: list[Any] = []
    note = lib.is_grad_enabled
    y.register_hook(lambda grad: log.append((note(), grad.requires_grad, grad.is_leaf)))
    y.grad_fn.register_prehook(lambda grads: log.append((note(), grads[0].requires_grad)))
    y.grad_fn.register_hook(lambda inputs, _: log.append((note(), inputs[0].requires_grad)))
    x.register_post_accumulate_grad_hook(lambda p: log.append((note(), p.grad.requires_grad)))
    y.sum().backward(retain_graph=True)
    assert log == [(False, False, True), (False, False), (False, False), (False, False)]
    x.grad = None
    (grad,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    return log, grad


@paired("G11", "G1")
def test_a_hook_under_create_graph_is_differentiated_too(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * x * x
    y.register_hook(lambda grad: grad * x)
    y.grad_fn.register_hook(lambda inputs, _: (inputs[0] * 2, inputs[1]))
    (first,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), x)
    return first, second


@paired("G12")
def test_what_a_hook_raises_comes_out_of_backward(lib: Any) -> Any:
    class Own(Exception):
        pass

    def fails(*_: Any) -> None:
        raise own

    own = Own("mine")
    caught = []
    for place in ("tensor", "pre", "post", "accumulated"):
        x = leaf(lib, 2)
        y = x * 2
        if place == "tensor":
            y.register_hook(fails)
        elif place == "pre":
            y.grad_fn.register_prehook(fails)
        elif place == "post":
            y.grad_fn.register_hook(fails)
        else:
            x.register_post_accumulate_grad_hook(fails)
        try:
            y.sum().backward()
        except Own as error:
            caught.append(error is own)
    assert caught == [True] * 4
    z = leaf(lib, 2)
    (z * 2).sum().backward()
    return z.grad


# ---------------------------------------------------------------------- registering and removing


@paired("G13")
def test_a_post_hook_registered_by_a_prehook_fires(lib: Any) -> Any:
    y = leaf(lib, 2) * 2
    log: list[str] = []

    def pre(grads: Any) -> None:
        log.append("pre")
        y.grad_fn.register_hook(lambda *_: log.append("late"))

    y.grad_fn.register_prehook(pre)
    y.grad_fn.register_hook(lambda *_: log.append("post"))
    y.sum().backward()
    assert log == ["pre", "post", "late"]
    return log


@paired("G13")
def test_a_function_that_hooks_its_own_node_while_it_runs(lib: Any) -> Any:
    log: list[Any] = []
    made: list[Any] = []

    class Hooks(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            made[0].grad_fn.register_hook(
                lambda inputs, _: (log.append("late"), (inputs[0] * 5,))[1]
            )
            return grad * 2

    x = leaf(lib, 2)
    made.append(Hooks.apply(x))
    made[0].sum().backward()
    assert log == ["late"]
    return x.grad


@paired("G13")
def test_a_hook_registered_by_a_hook_of_the_same_tensor_waits(lib: Any) -> Any:
    x = leaf(lib, 2)
    log: list[str] = []

    def first(grad: Any) -> None:
        log.append("first")
        x.register_hook(lambda grad: log.append("second"))

    handle = x.register_hook(first)
    (x * 2).sum().backward()
    handle.remove()
    (x * 2).sum().backward()
    assert log == ["first", "second"]
    return log


@paired("G13", "G16")
def test_a_hook_that_is_removed_while_they_run_still_runs_once(lib: Any) -> Any:
    x = leaf(lib, 2)
    log: list[str] = []
    handles: list[Any] = []

    def first(grad: Any) -> None:
        log.append("first")
        handles[0].remove()

    x.register_hook(first)
    handles.append(x.register_hook(lambda grad: log.append("removed")))
    (x * 2).sum().backward()
    (x * 2).sum().backward()
    assert log == ["first", "removed", "first"]
    return log


def module_level_hook(grad: Any) -> None:
    """A hook that pickle finds by its name."""


@paired("G16")
def test_handles(lib: Any) -> Any:
    x = leaf(lib, 2)
    log: list[str] = []
    with x.register_hook(lambda grad: log.append("inside")):
        (x * 2).sum().backward()
    (x * 2).sum().backward()
    handle = x.register_hook(lambda grad: log.append("removed"))
    handle.remove()
    handle.remove()
    (x * 2).sum().backward()
    other = leaf(lib, 2)
    kept = other.register_hook(module_level_hook)
    again = pickle.loads(pickle.dumps(kept))
    again.remove()
    again.remove()
    assert log == ["inside"]
    return again.id == kept.id, copy.copy(kept).id == kept.id


@paired("G16")
def test_a_handle_outlives_its_hooks(lib: Any) -> Any:
    handle = leaf(lib, 2).register_hook(module_level_hook)
    handle.remove()
    again = pickle.loads(pickle.dumps(handle))
    again.remove()
    return again.id == handle.id


@paired("G17")
def test_pickling_leaves_hooks_behind_and_says_so(lib: Any) -> Any:
    x = leaf(lib, 2)
    x.register_hook(module_level_hook)
    x.register_post_accumulate_grad_hook(module_level_hook)
    y = x * 2
    y.register_hook(module_level_hook)
    found = []
    for tensor in (x, y):
        with pytest.warns(UserWarning, match="backward hook .* on tensor will not be serialized"):
            data = pickle.dumps(tensor)
        found.append(pickle.loads(data))
    (found[0] * found[1]).sum().backward()
    return found, [tensor.grad for tensor in found]


@paired("G17")
def test_a_copy_of_a_tensor_has_no_hooks(lib: Any) -> Any:
    x = leaf(lib, 2)
    log: list[Any] = []
    x.register_hook(log.append)
    clone = copy.deepcopy(x)
    (clone * 2).sum().backward()
    assert log == []
    return clone.grad, x.grad


@paired("G19")
def test_a_hook_sees_the_sum_of_all_consumers(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * 1
    seen: list[Any] = []
    y.register_hook(seen.append)
    (y * 2 + y * 3 + y.exp()).sum().backward()
    assert len(seen) == 1
    return seen


@paired("G1", "D2")
def test_a_gradient_that_a_hook_keeps_does_not_change_later(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    y = x + w
    kept: list[Any] = []
    for tensor in (x, w, y):
        tensor.register_hook(kept.append)
    y.grad_fn.register_hook(lambda inputs, outputs: kept.extend(inputs + outputs))
    for _ in range(2):
        (y * 2).sum().backward(retain_graph=True)
    x.grad.mul_(100)
    with lib.no_grad():
        w.grad.zero_()
    assert len(kept) == 12
    return kept, x.grad, w.grad


@paired("G13", torch=False)  # PyTorch's Nodes look for hooks when they run; ours may run elsewhere
def test_a_hook_on_another_node_counts_from_the_next_backward_on(lib: Any) -> Any:
    x = leaf(lib, 2)
    y = x * 2
    z = y.exp()
    log: list[str] = []

    def registers(grad: Any) -> None:
        handle.remove()
        y.register_hook(lambda grad: log.append("tensor"))
        y.grad_fn.register_prehook(lambda grads: log.append("pre"))
        y.grad_fn.register_hook(lambda *_: log.append("post"))

    handle = z.register_hook(registers)
    z.sum().backward(retain_graph=True)
    first = list(log)
    z.sum().backward()
    assert first == []
    assert log == ["tensor", "pre", "post"]
    return log


@paired("G20")
def test_hooks_run_on_the_thread_that_called_backward(lib: Any) -> Any:
    x = leaf(lib, 2)
    y = x.exp() * 2
    seen: list[int] = []

    def note(*_: Any) -> None:
        seen.append(threading.get_ident())

    y.register_hook(note)
    y.grad_fn.register_prehook(note)
    y.grad_fn.register_hook(note)
    x.register_post_accumulate_grad_hook(note)
    caller = threading.Thread(target=lambda: y.sum().backward())
    caller.start()
    caller.join()
    assert seen == [caller.ident] * 4
    return x.grad
