"""Group G: backward hooks of whole modules."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from tests.semantics.paired import error_of, leaf, paired, values


def linear(lib: Any, inputs: int, outputs: int) -> Any:
    """A Linear layer with fixed weights in float64."""
    layer = lib.nn.Linear(inputs, outputs).double()
    with lib.no_grad():
        layer.weight.copy_(lib.tensor(values(outputs, inputs, seed=5)))
        layer.bias.copy_(lib.tensor(values(outputs, seed=6)))
    return layer


def product_module(lib: Any) -> Any:
    """A module with a number among its arguments and its outputs, and a constant output."""

    class Product(lib.nn.Module):
        def forward(self, a: Any, number: int, b: Any) -> Any:
            return a * b, number, b.detach()

    return Product()


@paired("G18")
def test_a_full_backward_hook_sees_what_flows_in_and_out(lib: Any) -> Any:
    layer, x = linear(lib, 2, 3), leaf(lib, 4, 2)
    seen: list[Any] = []
    layer.register_full_backward_hook(lambda *call: seen.append(call))
    layer(x).exp().sum().backward()
    ((module, grad_input, grad_output),) = seen
    assert module is layer
    return grad_input, grad_output, x.grad, layer.weight.grad


@paired("G18")
def test_hooks_may_replace_both_sides(lib: Any) -> Any:
    layer, x = linear(lib, 2, 3), leaf(lib, 4, 2)
    seen: list[Any] = []
    layer.register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 2,))
    layer.register_full_backward_hook(lambda module, inputs, outputs: seen.append(outputs))
    layer.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 10,))
    layer.register_full_backward_hook(lambda module, inputs, outputs: seen.append(inputs))
    layer(x).sum().backward()
    return seen, x.grad, layer.weight.grad


@paired("G18")
def test_arguments_and_outputs_that_are_no_tensors(lib: Any) -> Any:
    module = product_module(lib)
    a, b = leaf(lib, 2), leaf(lib, 2, seed=1)
    seen: list[Any] = []

    def hook(_: Any, inputs: Any, outputs: Any) -> Any:
        seen.append((inputs, outputs))
        return inputs[0] * 10, None, inputs[2]

    module.register_full_backward_hook(hook)
    product, number, constant = module(a, 5, b)
    product.sum().backward()
    assert number == 5
    assert not constant.requires_grad
    return seen, a.grad, b.grad


@paired("G18")
def test_what_module_hooks_may_return(lib: Any) -> Any:
    def backward_with(**hooks: Any) -> Any:
        module = product_module(lib)
        for kind, hook in hooks.items():
            getattr(module, f"register_full_backward_{kind}")(hook)
        return lambda: module(leaf(lib, 2), 5, leaf(lib, 2, seed=1))[0].sum().backward()

    return (
        error_of(
            backward_with(hook=lambda m, i, o: (i[0],)),
            "Backward hook returned an invalid number of grad_input, got 1, but expected 3",
        ),
        error_of(
            backward_with(pre_hook=lambda m, o: (o[0],)),
            "Backward pre hook returned an invalid number of grad_output, got 1, but expected 3",
        ),
    )


@paired("G18")
def test_a_module_whose_inputs_need_no_gradient(lib: Any) -> Any:
    layer = linear(lib, 2, 3)
    data = lib.tensor(values(4, 2))
    seen: list[Any] = []
    handle = layer.register_full_backward_hook(lambda _, *grads: seen.append(grads))
    with pytest.warns(UserWarning, match="no inputs require gradients"):
        layer(data).sum().backward()
    handle.remove()
    layer.register_full_backward_hook(lambda module, inputs, outputs: (outputs[0],))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failed = error_of(lambda: layer(data).sum().backward(), "where no input requires gradient")
    return seen, failed, layer.weight.grad


@paired("G18")
def test_a_module_that_returns_something_else(lib: Any) -> Any:
    class Named(lib.nn.Module):
        def forward(self, x: Any) -> Any:
            return {"doubled": x * 2}

    module, x = Named(), leaf(lib, 2)
    seen: list[Any] = []
    module.register_full_backward_hook(lambda *call: seen.append(call))
    with pytest.warns(UserWarning, match="module output should be a Tensor or a tuple of Tensors"):
        result = module(x)
    result["doubled"].sum().backward()
    assert seen == []
    return x.grad


@paired("G18")
def test_the_order_of_module_hooks(lib: Any) -> Any:
    outer = lib.nn.Sequential(linear(lib, 2, 3), lib.nn.Tanh(), linear(lib, 3, 1))
    order: list[str] = []
    for name, module in {"outer": outer, "first": outer[0], "last": outer[2]}.items():
        module.register_full_backward_hook(lambda *_, n=name: order.append(n))
        module.register_full_backward_pre_hook(lambda *_, n=name: order.append(f"{n} pre"))
        module.register_full_backward_hook(
            lambda *_, n=name: order.append(f"{n} prepended"), prepend=True
        )
    handle = outer.register_full_backward_hook(lambda *_: order.append("removed"))
    handle.remove()
    x = leaf(lib, 4, 2)
    outer(x).sum().backward()
    assert order == [
        "outer pre", "last pre", "last prepended", "last", "first pre", "first prepended", "first",
        "outer prepended", "outer",
    ]  # fmt: skip
    return order, x.grad


@paired("G18")
def test_hooks_fire_where_the_gradient_passes(lib: Any) -> Any:
    layer, x = linear(lib, 2, 2), leaf(lib, 4, 2)
    seen: list[Any] = []
    layer.register_full_backward_hook(lambda _, *grads: seen.append(grads))
    grads = lib.autograd.grad(layer(x).sum(), x)
    lib.autograd.grad(layer(x).sum(), layer.weight)
    with lib.no_grad():
        plain = layer(x)
    assert len(seen) == 1
    return grads, seen, plain


@paired("G18", "G11")
def test_module_hooks_with_create_graph(lib: Any) -> Any:
    layer, x = linear(lib, 2, 2), leaf(lib, 4, 2)
    seen: list[Any] = []
    layer.register_full_backward_hook(lambda _, *grads: seen.append(grads))
    (grad,) = lib.autograd.grad((layer(x) ** 2).sum(), x, create_graph=True)
    grad.exp().sum().backward()
    return seen, x.grad, layer.weight.grad


@paired("G18")
def test_the_outputs_may_not_be_changed_in_place(lib: Any) -> Any:
    layer = linear(lib, 2, 3)
    layer.register_full_backward_hook(lambda *_: None)
    return error_of(lambda: layer(leaf(lib, 4, 2)).mul_(2), "modified inplace", "custom Function")
