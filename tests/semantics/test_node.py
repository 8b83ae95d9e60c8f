"""Group F: what a user can ask a Node, and gradient edges."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest

import mpgrad as mg
from tests.semantics.paired import error_of, leaf, paired, row, values


def ones(lib: Any, *shape: int, scale: float = 1.0) -> Any:
    return lib.full(shape, scale, dtype=lib.float64)


def scale_function(lib: Any) -> Any:
    """A custom Function with a tensor, a number and another tensor as arguments."""

    class Scale(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, factor: float, y: Any) -> Any:
            ctx.factor = factor
            return x * factor + y

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * ctx.factor, None, grad

    return Scale


# ---------------------------------------------------------------------- what it is


@paired("F2")
def test_next_functions_lead_to_the_leaves(lib: Any) -> Any:
    x, w = leaf(lib, 2), leaf(lib, 2, seed=1)
    y = x * w
    z = y * 3
    (inner, number), (nothing, zero) = z.grad_fn.next_functions
    assert inner is y.grad_fn
    assert nothing is None
    leaves = inner.next_functions
    assert [node.variable is leaf_ for (node, _), leaf_ in zip(leaves, (x, w), strict=True)] == [
        True,
        True,
    ]
    assert leaves[0][0].next_functions == ()
    return number, zero, [nr for _, nr in leaves], len(z.grad_fn.next_functions)


@paired("F2")
def test_next_functions_of_a_function_name_its_tensors(lib: Any) -> Any:
    x, y = leaf(lib, 2), leaf(lib, 2, seed=1)
    result = scale_function(lib).apply(x, 2.0, y)
    found = result.grad_fn.next_functions
    assert [node.variable is tensor for (node, _), tensor in zip(found, (x, y), strict=True)]
    return len(found), result.grad_fn.name(), [number for _, number in found]


@paired("F2")
def test_names_metadata_and_numbers(lib: Any) -> Any:
    x = leaf(lib, 2, 3)
    y = x * 2
    z = y.exp()
    node = z.grad_fn
    node.metadata["mine"] = [1, 2]
    assert z.grad_fn is node
    assert z.grad_fn.metadata == {"mine": [1, 2]}
    assert y.grad_fn.metadata == {}
    (meta,) = node._input_metadata
    accumulator = y.grad_fn.next_functions[0][0]
    assert accumulator._sequence_nr() > node._sequence_nr()
    return (
        node._sequence_nr() - y.grad_fn._sequence_nr(),
        node.name().startswith("ExpBackward0"),
        accumulator.name().endswith("AccumulateGrad"),
        tuple(meta.shape),
        meta.dtype,
        str(meta.device),
        node.requires_grad,
    )


@paired("F2")
def test_nodes_have_the_names_and_types_of_pytorch(lib: Any) -> Any:
    x, y, weight = leaf(lib, 2, 3), leaf(lib, 2, 3, seed=1), leaf(lib, 3, 4, seed=2)
    found = [
        x * 2, x + y, x - y, x / y, -x, x**2, (x * x + 1) ** y, 2**x, x % 2, x.sum(), x.sum(0),
        x.mean(), x.mean(1), x.prod(), x.prod(0), x @ weight, x[0], x[:, 1:], x[None], x[..., 1],
        x[lib.tensor([0, 1])], x.atan(), (x * x).log1p(), x.clamp(0, 1), x.view(-1), x.clone(),
        x % y, x.masked_fill(x > 0, 2.0), x.masked_fill(x > 0, lib.tensor(2.0)),
        x.clone().fill_(1.0),
        x.permute(1, 0), lib.cat([x, y]), lib.log_softmax(x, 1),
        x.gather(0, lib.tensor([[0, 1]])),
    ]  # fmt: skip
    custom = scale_function(lib).apply(x, 2.0, y)
    classes = {type((x * y).grad_fn) for _ in range(2)}
    return (
        [(t.grad_fn.name(), type(t.grad_fn).__name__) for t in found],
        type(custom.grad_fn).__name__,
        type(custom.grad_fn) is scale_function(lib)._backward_cls,
        len(classes),
        repr(found[0].grad_fn).startswith("<MulBackward0 object at"),
    )


@paired("F2")
def test_a_user_sets_no_attributes_of_a_node(lib: Any) -> Any:
    node = (leaf(lib, 2) * 2).grad_fn
    try:
        node.mine = 1
    except AttributeError as error:
        return type(error).__name__
    raise AssertionError("it could be set")


@paired("F2")
def test_input_metadata_of_several_outputs(lib: Any) -> Any:
    class Two(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.sum(), x.to(lib.float32)

        @staticmethod
        def backward(ctx: Any, first: Any, second: Any) -> Any:
            return None

    total, _ = Two.apply(leaf(lib, 2, 3))
    return [(tuple(meta.shape), meta.dtype) for meta in total.grad_fn._input_metadata]


@paired("F3")
def test_every_node_is_a_node(lib: Any) -> Any:
    x = leaf(lib, 2)
    y = x * 2
    f = scale_function(lib).apply(y, 2.0, x)
    graph = lib.autograd.graph
    nodes = [y.grad_fn, f.grad_fn, graph.get_gradient_edge(x).node]
    return [isinstance(node, graph.Node) for node in nodes], isinstance(x, graph.Node)


@paired("F2")
def test_the_same_node_is_seen_by_all(lib: Any) -> Any:
    x = leaf(lib, 2)
    a, b = x * 2, x * 3
    accumulators = {t.grad_fn.next_functions[0][0] for t in (a, b)}
    accumulators.add(lib.autograd.graph.get_gradient_edge(x).node)
    return len(accumulators)


# ---------------------------------------------------------------------- calling it


@paired("F4")
def test_a_node_can_be_called(lib: Any) -> Any:
    x, w = leaf(lib, 2), leaf(lib, 2, seed=1)
    y = x * w
    called: list[Any] = []
    y.grad_fn.register_prehook(called.append)
    y.register_hook(called.append)
    results = (
        y.grad_fn(ones(lib, 2, scale=5.0)),
        (x * 3).grad_fn(ones(lib, 2)),
        x.exp().grad_fn(ones(lib, 2)),
    )
    assert isinstance(results[0], tuple)
    assert isinstance(results[2], type(x))
    assert called == []
    return results, y.grad_fn(None)


@paired("F4")
def test_calling_a_node_is_recorded(lib: Any) -> Any:
    x, w = leaf(lib, 2), leaf(lib, 2, seed=1)
    seed = leaf(lib, 2, seed=2)
    node = (x * w).grad_fn
    for_x, for_w = node(seed)
    grads = lib.autograd.grad((for_x * for_w).sum(), (x, w, seed))
    with lib.no_grad():
        plain = node(seed)
    return for_x, for_w, grads, plain


@paired("F4")
def test_what_a_node_refuses(lib: Any) -> Any:
    x = leaf(lib, 2)
    y = x.exp()
    node, seed = y.grad_fn, ones(lib, 2)
    errors = [
        error_of(lambda: node(), "expected 1 arguments, got 0 instead"),
        error_of(lambda: node(seed, seed), "expected 1 arguments, got 2 instead"),
        error_of(lambda: node(1.0), "argument 0 is not a Variable"),
        error_of(lambda: node(seed=seed), "keyword argument"),
    ]
    y.sum().backward()
    return *errors, error_of(lambda: node(seed), "second time")


@paired("F4")
def test_calling_the_node_of_a_leaf_accumulates(lib: Any) -> Any:
    x = leaf(lib, 2)
    node = lib.autograd.graph.get_gradient_edge(x).node
    results = node(ones(lib, 2)), node(ones(lib, 2, scale=2.0)), node(None)
    return results, x.grad, error_of(lambda: node(ones(lib, 3)), "must match the size")


# ---------------------------------------------------------------------- edges


@paired("F6")
def test_an_edge_names_node_and_output(lib: Any) -> Any:
    class Two(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, first: Any, second: Any) -> Any:
            return first * 2 + second * 3

    x = leaf(lib, 2)
    outputs = Two.apply(x)
    edge_of = lib.autograd.graph.get_gradient_edge
    edges = [edge_of(tensor) for tensor in (*outputs, x)]
    assert edges[0].node is edges[1].node is outputs[0].grad_fn
    assert edges[2].node.variable is x
    assert edges[2] == edge_of(x)
    words = "not possible to get the gradient edge for a Tensor that does not require grad"
    return [e.output_nr for e in edges], error_of(lambda: edge_of(lib.ones(2)), words)


@paired("F6", "F7")
def test_an_edge_keeps_the_graph(lib: Any) -> Any:
    x = leaf(lib, 2)
    edge_of = lib.autograd.graph.get_gradient_edge
    edges = [edge_of(scale_function(lib).apply(x.exp(), 2.0, x)), edge_of((x * 3).exp())]
    gc.collect()
    seeds = [ones(lib, 2), ones(lib, 2, scale=2.0)]
    return lib.autograd.grad(edges, x, seeds)


@paired("F7")
def test_edges_as_roots_and_inputs(lib: Any) -> Any:
    x = leaf(lib, 2)
    y = x * 3
    z = y * 2
    edge_of = lib.autograd.graph.get_gradient_edge
    ex, ey, ez = (edge_of(tensor) for tensor in (x, y, z))
    seed = ones(lib, 2, scale=5.0)
    grads = lib.autograd.grad(ez, (ey, ex), seed, retain_graph=True)
    mixed = lib.autograd.grad([ez, y], [y, ex], [seed, seed], retain_graph=True)
    lib.autograd.backward(ez, seed, inputs=[ex], retain_graph=True)
    first = x.grad.clone()
    lib.autograd.backward([ez], [seed])
    return grads, mixed, first, x.grad


@paired("F7", "A24")
def test_an_edge_of_one_element_needs_no_seed(lib: Any) -> Any:
    x = leaf(lib, 2)
    edge = lib.autograd.graph.get_gradient_edge((x * x).sum())
    lib.autograd.backward(edge, retain_graph=True)
    other = lib.autograd.graph.get_gradient_edge(x * 1)
    words = "grad can be implicitly created only for scalar outputs"
    return x.grad, error_of(lambda: lib.autograd.grad(other, x), words)


@paired("F7")
def test_an_edge_remembers_the_leaf_after_its_data_changed(lib: Any) -> Any:
    x = leaf(lib, 2)
    y = (x * 3).sum()
    edge = lib.autograd.graph.get_gradient_edge(x)
    with lib.no_grad():
        x.copy_(lib.tensor(values(2, seed=9)))
    return lib.autograd.grad(y, edge)


@paired("F7")
def test_an_edge_remembers_the_value_before_an_in_place_change(lib: Any) -> Any:
    x = leaf(lib, 2)
    y = x * 3
    edge_of = lib.autograd.graph.get_gradient_edge
    before = edge_of(y)
    y.mul_(5)
    after = edge_of(y)
    assert before.node is not after.node
    assert after.node is y.grad_fn
    loss = (y * y).sum()
    return lib.autograd.grad(loss, (before, after, y, x), retain_graph=True), lib.autograd.grad(
        before, x, ones(lib, 2)
    )


@paired("F7", "A16", "A18")
def test_unused_edges(lib: Any) -> Any:
    x, w = leaf(lib, 2), leaf(lib, 2, seed=1)
    edge_of = lib.autograd.graph.get_gradient_edge
    root, unused, seed = edge_of(x * 2), edge_of(w), ones(lib, 2)
    grad = lib.autograd.grad
    return (
        error_of(lambda: grad(root, unused, seed, retain_graph=True), "not have been used"),
        grad(root, unused, seed, retain_graph=True, allow_unused=True),
        error_of(
            lambda: grad(root, unused, seed, retain_graph=True, materialize_grads=True),
            "materialize_grads cannot be used when the given input is a GradientEdge",
        ),
    )


@row("F6")
def test_an_edge_has_an_ownership_token() -> None:
    # In PyTorch it keeps the Node of a Function alive; here the edge's node does so itself.
    x = leaf(mg, 2)
    edge = mg.autograd.graph.get_gradient_edge(scale_function(mg).apply(x, 2.0, x))
    assert edge.ownership_token is None
    node, output_nr, _ = edge
    assert (node, output_nr) == (edge.node, edge.output_nr)


# ---------------------------------------------------------------------- while it runs, and after


@paired("F8")
def test_the_current_node(lib: Any) -> Any:
    current = _current(lib)
    log: list[Any] = []

    class Noted(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            log.append(current())
            return grad

    x = leaf(lib, 2)
    y = Noted.apply(x)
    z = y * 2
    z.register_hook(lambda grad: log.append(current()))
    y.grad_fn.register_prehook(lambda grads: log.append(current()))
    y.grad_fn.register_hook(lambda *_: log.append(current()))
    x.register_post_accumulate_grad_hook(lambda p: log.append(current()))
    z.sum().backward()
    accumulator = lib.autograd.graph.get_gradient_edge(x).node
    names = {z.grad_fn: "z", y.grad_fn: "y", accumulator: "x"}
    assert [names[node] for node in log] == ["z", "y", "y", "y", "x"]
    assert current() is None
    return [names[node] for node in log], current()


@paired("F8")
def test_the_current_node_around_an_inner_backward(lib: Any) -> Any:
    current = _current(lib)
    log: list[bool] = []
    x = leaf(lib, 2)
    y, inner = x * 2, leaf(lib, 2, seed=1)

    def nested(grad: Any) -> None:
        before = current()
        with lib.enable_grad():
            product = inner * 3
            product.register_hook(lambda grad: log.append(current() is product.grad_fn))
            product.sum().backward()
        log.append(current() is before is y.grad_fn)

    y.register_hook(nested)
    y.sum().backward()
    assert log == [True, True]
    return x.grad, inner.grad


@paired("F8", "G13")
def test_unpacking_belongs_to_a_node_and_may_hook_it(lib: Any) -> Any:
    current = _current(lib)
    x = leaf(lib, 2)
    log: list[Any] = []
    made: list[Any] = []

    def unpack(packed: Any) -> Any:
        log.append(current() is made[0].grad_fn)
        if len(log) == 1:
            made[0].grad_fn.register_hook(lambda inputs, _: (inputs[0] * 10, inputs[1]))
        return packed

    with lib.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        made.append(x * leaf(lib, 2, seed=1))
    made[0].sum().backward(retain_graph=True)
    first = x.grad.clone()
    (made[0] * 2).sum().backward(retain_graph=True)
    made[0].grad_fn.register_hook(lambda inputs, _: log.append(current()))
    grads = lib.autograd.grad(made[0].sum(), x, create_graph=True)
    assert log.pop() is made[0].grad_fn
    assert set(log) == {True}
    return first, x.grad, grads


def _current(lib: Any) -> Any:
    return lib.autograd.graph.current_autograd_node if lib is mg else lib._C._current_autograd_node


@paired("F9")
def test_the_node_of_a_function_outlives_its_tensor(lib: Any) -> Any:
    x = leaf(lib, 2)
    node = scale_function(lib).apply(x, 2.0, x).grad_fn
    gc.collect()
    (first, _), (second, _) = node.next_functions
    handle = node.register_hook(lambda *_: None)
    handle.remove()
    return first.variable is x, second.variable is x, node.name(), node.metadata


@pytest.mark.parametrize("mode", ["local", pytest.param("process", marks=pytest.mark.process)])
@row("F9")
def test_a_node_is_all_that_its_graph_needs(mode: str, request: pytest.FixtureRequest) -> None:
    if mode == "process":
        request.getfixturevalue("process_engine")
    x = leaf(mg, 2)
    edge = mg.autograd.graph.GradientEdge(scale_function(mg).apply(x, 2.0, x).grad_fn, 0)
    gc.collect()
    (grad,) = mg.autograd.grad(edge, x, mg.ones(2, dtype=mg.float64))
    assert grad.tolist() == [3.0, 3.0]


@paired("F3")
def test_a_node_is_what_is_registered_as_one(lib: Any) -> Any:
    node = lib.autograd.graph.Node
    kinds = lib._C._functions
    contexts = []

    class Noting(lib.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            contexts.append(isinstance(ctx, node))
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            contexts.append(isinstance(ctx, node))
            return grad

    x = leaf(lib, 2)
    y = Noting.apply(x)
    y.sum().backward()
    return (
        contexts,
        issubclass(type(y.grad_fn), node),
        issubclass(lib.autograd.function.BackwardCFunction, node),
        [issubclass(kind, node) for kind in (kinds.AccumulateGrad, kinds.DelayedError)],
        isinstance((x * 2).grad_fn.next_functions[0][0], kinds.AccumulateGrad),
        [isinstance(value, node) for value in (None, 1, node)],
        node in type((x * 2).grad_fn).mro(),
    )


@paired("L7")
def test_a_delayed_error_is_raised_when_backward_comes_to_it(lib: Any) -> Any:
    x, y = leaf(lib, 2), leaf(lib, 2, seed=1)
    stopped = lib._C._functions.DelayedError("Boom!", 1)(y)
    first, second = lib._C._functions.DelayedError("Boom!", 2)(x, y)
    out = (x * stopped).sum()
    (beside,) = lib.autograd.grad(out, x, retain_graph=True)
    return (
        error_of(out.backward, "Boom!"),
        error_of((first + second).sum().backward, "Boom!"),
        beside,
        type(stopped.grad_fn).__name__,
        len(first.grad_fn.next_functions),
    )


@paired("D3")
def test_the_first_gradient_of_create_graph_is_a_copy(lib: Any) -> Any:
    x = leaf(lib, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (x**2).sum().backward(create_graph=True)
    node = x.grad.grad_fn
    return type(node).__name__, [at is None for at, _ in node.next_functions]
