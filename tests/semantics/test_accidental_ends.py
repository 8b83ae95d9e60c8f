"""StopIteration from a Function or a hook: a RuntimeError, which no loop takes for its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd.graph import register_multi_grad_hook, saved_tensors_hooks


def stop(*_: Any) -> Any:
    return next(iter(()))


class Doubled(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * ctx.saved_tensors[0]


class InBackward(Doubled):
    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return next(iter(()))


class InClient(InBackward):
    run_on = "client"


class InForward(Doubled):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return stop()


class InSetup(mg.Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        stop()


class Nested(Doubled):
    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        with mg.enable_grad():
            step(InBackward.apply)
        return grad


def step(function: Callable[[Any], Any]) -> Any:
    """Forward and backward."""
    x = mg.ones(3, requires_grad=True)
    function(x).exp().sum().backward()
    return x.grad


def of_node(register: Callable[[Any], Any]) -> Any:
    def function(x: Any) -> Any:
        doubled = x * 2
        register(doubled)
        return doubled

    return step(function)


def saved(pack: Any, unpack: Any) -> Any:
    def function(x: Any) -> Any:
        with saved_tensors_hooks(pack, unpack):
            return Doubled.apply(x * x)

    return step(function)


def of_module(register: str) -> Any:
    model = mg.nn.Sequential(mg.nn.Linear(3, 3), mg.nn.Tanh())
    getattr(model[1], register)(stop)
    return step(model)


def callback(x: Any) -> Any:
    engine = mg.autograd.Variable._execution_engine
    x.register_hook(lambda grad: engine.queue_callback(stop))
    return x * 1


def create_graph() -> Any:
    x = mg.ones(3, requires_grad=True)
    return mg.grad(InBackward.apply(x).sum(), x, create_graph=True)


def same(value: Any) -> Any:
    return value


STEPS: dict[str, Callable[[], Any]] = {
    "backward": lambda: step(InBackward.apply),
    "backward in the client": lambda: step(InClient.apply),
    "forward": lambda: step(InForward.apply),
    "setup_context": lambda: step(InSetup.apply),
    "a nested backward": lambda: step(Nested.apply),
    "create_graph": create_graph,
    "hook": lambda: of_node(lambda y: y.register_hook(stop)),
    "prehook of a Node": lambda: of_node(lambda y: y.grad_fn.register_prehook(stop)),
    "hook of a Node": lambda: of_node(lambda y: y.grad_fn.register_hook(stop)),
    "hook of a leaf": lambda: step(lambda x: x.register_hook(stop) and x * 1),
    "post-accumulate hook": lambda: step(
        lambda x: x.register_post_accumulate_grad_hook(stop) and x * 1
    ),
    "multi-grad hook": lambda: of_node(lambda y: register_multi_grad_hook((y,), stop)),
    "pack": lambda: saved(stop, same),
    "unpack": lambda: saved(same, stop),
    "callback": lambda: step(callback),
    **{
        name: lambda name=name: of_module(name)  # type: ignore[misc]
        for name in (
            "register_forward_pre_hook",
            "register_forward_hook",
            "register_full_backward_pre_hook",
            "register_full_backward_hook",
            "register_backward_hook",
        )
    },
}


def run(name: str) -> Any:
    return STEPS[name]()


@pytest.fixture(params=["local", "process"])
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "process":
        request.getfixturevalue("process_engine")
        yield "process"
    else:
        with mg.Engine("local"):
            yield "local"


@pytest.mark.process
@pytest.mark.parametrize("name", STEPS)
def test_a_loop_does_not_end(name: str, mode: str) -> None:
    """``map`` would take a StopIteration for its own end."""
    with pytest.raises(RuntimeError, match="raised StopIteration") as caught:
        list(map(run, [name]))
    assert isinstance(caught.value.__cause__, StopIteration) or name == "a nested backward"
