"""Group B: what user code may ask about the backward that it runs in."""

from __future__ import annotations

import contextlib
from contextlib import nullcontext
from typing import Any, NamedTuple

import mpgrad as mg
from tests.semantics.paired import error_of, leaf, paired


class Questions(NamedTuple):
    """The functions by which user code asks; in PyTorch they are private."""

    id: Any
    order: Any
    executes: Any
    keeps: Any


def questions(lib: Any) -> Questions:
    if lib is mg:
        graph = lib.autograd.graph
        return Questions(
            graph.current_graph_task_id,
            graph.current_graph_task_execution_order,
            graph.will_engine_execute_node,
            graph.current_graph_task_keep_graph,
        )
    return Questions(
        lib._C._current_graph_task_id,
        lib._C._current_graph_task_execution_order,
        lib._C._will_engine_execute_node,
        lib._C._autograd._get_current_graph_task_keep_graph,
    )


@paired("B19", "B20", "B21", "B22")
def test_outside_of_a_backward(lib: Any) -> Any:
    ask = questions(lib)
    node = (leaf(lib, 2) * 2).grad_fn
    words = "should only be called during the backward pass"
    return (
        ask.id(),
        ask.keeps(),
        error_of(ask.order, words),
        error_of(lambda: ask.executes(node), words),
    )


@paired("B1", "B19")
def test_each_backward_has_a_number_of_its_own(lib: Any) -> Any:
    ask = questions(lib)
    numbers: list[int] = []
    x = leaf(lib, 2)

    def nested(grad: Any) -> None:
        numbers.append(ask.id())
        with lib.enable_grad():
            inner = leaf(lib, 2, seed=1) * 2
            inner.register_hook(lambda grad: numbers.append(ask.id()))
            inner.sum().backward()
        numbers.append(ask.id())

    y = x * 2
    y.register_hook(nested)
    x.register_hook(lambda grad: numbers.append(ask.id()))
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    outer, inner, back, end, second = numbers[:5]
    assert outer == back == end >= 0
    assert len({outer, inner, second}) == 3
    return ask.id(), len(numbers)


@paired("B22")
def test_whether_the_graph_is_kept(lib: Any) -> Any:
    ask = questions(lib)
    kept: list[bool] = []
    x = leaf(lib, 2)
    y = (x * x).sum()
    x.register_hook(lambda grad: kept.append(ask.keeps()))
    y.backward(retain_graph=True)
    lib.autograd.grad(y, x, create_graph=True)
    lib.autograd.grad(y, x, create_graph=True, retain_graph=True)
    y.backward()
    assert kept == [True, True, True, False]
    return kept, ask.keeps()


@paired("B4", "B21")
def test_which_nodes_will_run(lib: Any) -> Any:
    ask = questions(lib)
    x, w = leaf(lib, 2), leaf(lib, 2, seed=1)
    y = x * w
    z = y.exp()
    loss = (z + y).sum()
    accumulators = [node for node, _ in y.grad_fn.next_functions]
    elsewhere = (leaf(lib, 2) * 2).grad_fn
    nodes = [z.grad_fn, y.grad_fn, *accumulators, elsewhere]
    answers: list[list[bool]] = []
    handle = z.register_hook(lambda grad: answers.append([ask.executes(node) for node in nodes]))
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True, inputs=[x])
    loss.backward(retain_graph=True, inputs=[y])
    lib.autograd.grad(loss, y, retain_graph=True)
    handle.remove()
    assert answers == [
        [True, True, True, True, False],
        [True, True, True, False, False],
        [True, True, False, False, False],
        [True, True, False, False, False],
    ]
    z.register_hook(lambda grad: ask.executes(accumulators[0]))
    return error_of(lambda: lib.autograd.grad(loss, x, retain_graph=True), "leaf node")


@paired("B21")
def test_only_nodes_can_be_asked_for(lib: Any) -> Any:
    ask = questions(lib)
    y = leaf(lib, 2) * 2
    y.register_hook(lambda grad: ask.executes(3))
    return error_of(lambda: y.sum().backward(), "expects an grad_fn, but got int")


@paired("B12", "B20")
def test_the_order_in_which_nodes_will_run(lib: Any) -> Any:
    ask = questions(lib)
    x, w = leaf(lib, 2), leaf(lib, 2, seed=1)
    a = x * 2
    b = w * 3
    c = a * b
    loss = (c + a).sum()
    names = {
        loss.grad_fn: "loss",
        loss.grad_fn.next_functions[0][0]: "sum of c and a",
        c.grad_fn: "c",
        b.grad_fn: "b",
        a.grad_fn: "a",
        a.grad_fn.next_functions[0][0]: "x",
        b.grad_fn.next_functions[0][0]: "w",
    }
    orders: list[list[str]] = []
    loss.register_hook(lambda grad: orders.append([names[node] for node in ask.order()]))
    # PyTorch knows the order only on one thread; here it is the order of hooks in any case.
    with nullcontext() if lib is mg else lib.autograd.set_multithreading_enabled(False):
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True, inputs=[w])
        loss.backward(retain_graph=True, inputs=[a])
        lib.autograd.grad(loss, [x, c], retain_graph=True)
    assert orders[0] == ["loss", "sum of c and a", "c", "b", "w", "a", "x"]
    return orders


class AsksForItsTask(mg.autograd.Function):
    """Needs nothing but what only the client knows."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> mg.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
        inside = mg.autograd.graph.current_graph_task_id() >= 0
        executes = mg.autograd.graph.will_engine_execute_node(
            mg.autograd.graph.current_autograd_node()
        )
        return grad * (2.0 if inside and executes else 1.0)


@paired("B19", "B21", "F8", torch=False)  # in PyTorch everything is in one process
def test_a_function_that_asks_runs_in_the_client(lib: Any) -> Any:
    x = leaf(lib, 2)
    AsksForItsTask.apply(x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    return x.grad


@paired("B20", "B21")
def test_where_pytorchs_code_asks_for_the_running_backward(lib: Any) -> Any:
    seen: dict[str, Any] = {}

    def hook(grad: Any) -> None:
        seen["id"] = lib._C._current_graph_task_id() >= 0
        seen["runs"] = lib._C._will_engine_execute_node(z.grad_fn.next_functions[0][0])
        with contextlib.suppress(RuntimeError):
            seen["order"] = [node.name() for node in lib._C._current_graph_task_execution_order()]

    z = leaf(lib, 1).clone().sin().exp()
    z.register_hook(hook)
    side_by_side = error_of(
        lambda: z.backward(retain_graph=True) or lib._C._current_graph_task_execution_order(),
        "during the backward pass",
    )
    several = dict(seen)
    with lib.autograd.set_multithreading_enabled(False):
        z.backward()
    return several, seen, side_by_side, lib._C._current_graph_task_id()
