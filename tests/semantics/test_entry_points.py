"""Group A: what ``backward()`` and ``grad()`` take and give."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import Any, ClassVar

import pytest

import mpgrad as mg
from tests.semantics.paired import error_of, leaf, paired, row, values


def ones(lib: Any, *shape: int) -> Any:
    return lib.ones(shape, dtype=lib.float64)


def warned(action: Any) -> list[str]:
    """The categories of the warnings that ``action`` gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [entry.category.__name__ for entry in caught]


# ---------------------------------------------------------------------- backward(): roots and seeds


@paired("A1", "A9")
def test_a_root_listed_twice_counts_twice(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = (x * x).sum()
    result = lib.autograd.backward([y, y])
    return x.grad, result


@paired("A1")
def test_gradients_add_up_until_they_are_cleared(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    (x * w).sum().backward()
    (x * x).sum().backward()
    added = x.grad.clone()
    x.grad = None
    (x * w).sum().backward()
    return added, x.grad, w.grad


@paired("A1")
def test_a_root_must_have_a_history(lib: Any) -> Any:
    x, constant = leaf(lib, 3), ones(lib)
    words = "does not require grad and does not have a grad_fn"
    return (
        error_of(constant.backward, f"element 0 of tensors {words}"),
        error_of(
            lambda: lib.autograd.backward([x.sum(), constant]), f"element 1 of tensors {words}"
        ),
        x.grad,
    )


@paired("A1", "A25")
def test_saved_tensors_are_freed_unless_the_graph_is_retained(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    again = error_of(y.backward, "second time", "retain_graph=True")
    plain = (x + x).sum()  # saves nothing, so it may run again
    plain.backward()
    plain.backward()
    return again, x.grad


@paired("A1", "A25")
def test_what_saves_nothing_may_run_again(lib: Any) -> Any:
    x = leaf(lib, 4, 3)
    for y in (
        x[1:3], x[:, 0], x.view(3, 4), x.permute(1, 0), x.sum(0), x.mean(), x - x, -x, x.clone(),
        x.split(2)[1], x.unbind()[0], lib.cat([x, x], 0), x.expand(2, 4, 3), x.to(lib.float32),
    ):  # fmt: skip
        loss = y.sum()
        loss.backward()
        loss.backward()
    return x.grad


@paired("A2")
def test_the_implicit_seed_is_one(lib: Any) -> Any:
    x = leaf(lib, 1, 1)
    y = x * 3
    y.backward()
    half = lib.tensor([2.0], dtype=lib.float32, requires_grad=True)
    (half * half).backward()
    return x.grad, half.grad


@paired("A2")
def test_only_one_real_number_gets_an_implicit_seed(lib: Any) -> Any:
    x = leaf(lib, 3)
    words = "implicitly created only for scalar outputs"
    return (
        error_of((x * 2).backward, words),
        error_of(lambda: lib.autograd.grad(x * 2, x), words),
        error_of(lambda: lib.autograd.backward([x.sum(), x * 2]), words),
        x.grad,
    )


@paired("A3")
def test_a_root_without_history_is_refused_even_without_a_seed(lib: Any) -> Any:
    x = leaf(lib, 3)
    roots = [x.sum(), ones(lib)]
    words = "element 1 of tensors does not require grad"
    return (
        error_of(lambda: lib.autograd.backward(roots, [None, None]), words),
        error_of(lambda: lib.autograd.backward(roots, [None, ones(lib)]), words),
        x.grad,
    )


@paired("A4")
def test_a_seed_has_the_shape_of_its_root(lib: Any) -> Any:
    y = leaf(lib, 3) * 2
    return (
        error_of(
            lambda: lib.autograd.backward([y, y.sum()], [ones(lib, 1), None]),
            "Mismatch in shape: grad_output[0] has a shape of",
            "and output[0] has a shape of",
        ),
        error_of(lambda: y.backward(ones(lib, 1, 3)), "Mismatch in shape"),
        error_of(lambda: lib.autograd.grad(y, y, ones(lib)), "Mismatch in shape"),
    )


@paired("A6")
def test_a_seed_is_a_tensor_or_none(lib: Any) -> Any:
    y = leaf(lib, 3).sum()
    words = "gradients can be either Tensors or None, but got"
    return (
        error_of(lambda: lib.autograd.backward([y], [3.0]), words),
        error_of(lambda: lib.autograd.grad(y, y, ["1"]), words),
        # PyTorch fails to iterate over the number; the type of the error is the same.
        error_of(lambda: y.backward(3.0)),
    )


@paired("A7")
def test_every_root_has_its_seed(lib: Any) -> Any:
    x = leaf(lib, 3)
    words = "got 2 tensors and 1 gradients"
    return (
        error_of(lambda: lib.autograd.backward([x.sum(), x.sum()], [None]), words),
        error_of(lambda: lib.autograd.backward([x.sum(), x.sum()], ones(lib)), words),
    )


@row("A7")
def test_a_seed_too_many_is_an_error() -> None:
    # PyTorch 2.13 forgets the seeds that have no root; the engine behind it names the mistake.
    x = leaf(mg, 3)
    with pytest.raises(RuntimeError, match="got 1 tensors and 2 gradients"):
        mg.autograd.backward([x.sum()], [None, None])


@row("A8")
def test_a_root_is_a_tensor_or_an_edge() -> None:
    # PyTorch 2.13 has the same words in its engine, but an AssertionError comes before them.
    x = leaf(mg, 3)
    for call in (
        lambda: mg.autograd.backward([x.sum(), 3.0]),
        lambda: mg.autograd.grad([x.sum(), None], x),
    ):
        with pytest.raises(
            RuntimeError, match="element 1 of tensors is neither a Tensor nor a GradientEdge"
        ):
            call()


@paired("A8", "A12")
def test_an_input_is_a_tensor_or_an_edge(lib: Any) -> Any:
    y = leaf(lib, 3).sum()
    words = "all inputs have to be Tensors or GradientEdges, but got float"
    return (
        error_of(lambda: lib.autograd.grad(y, [3.0]), words),
        error_of(lambda: y.backward(inputs=[3.0]), words),
        error_of(lambda: lib.autograd.backward(3.0)),
    )


@paired("A1", "A11")
def test_roots_seeds_and_inputs_may_come_from_generators(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    y = x * w
    roots, seeds = (t for t in (y, y * 2)), (ones(lib, 3) for _ in range(2))
    lib.autograd.backward(roots, seeds, inputs=(t for t in (w,)), retain_graph=True)
    return x.grad, w.grad, lib.autograd.grad(y.sum(), (t for t in (x, w)))


@paired("A10")
def test_several_roots_share_one_pass(lib: Any) -> Any:
    x = leaf(lib, 3)
    shared, calls = x.exp(), []
    shared.register_hook(lambda grad: calls.append(1))
    roots = [shared.sum(), (shared * shared).sum(), shared]
    lib.autograd.backward(roots, [None, ones(lib), ones(lib, 3)])
    return x.grad, len(calls)


@paired("A1", "A22")
def test_a_leaf_can_be_the_root(lib: Any) -> Any:
    x = leaf(lib, 3)
    seed = lib.tensor(values(3, seed=5))
    x.backward(seed)
    x.backward(seed)
    return x.grad, seed, x.grad is seed


@paired("A14")
def test_backward_of_a_tensor_takes_what_the_function_takes(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    y = x * w
    y.backward(ones(lib, 3), True, False, [x])
    y.backward(gradient=ones(lib, 3) * 2, retain_graph=None, create_graph=False, inputs=w)
    return x.grad, w.grad, error_of(lambda: y.backward(ones(lib, 3)), "second time")


@paired("A13")
def test_grad_variables_is_the_old_name_of_grad_tensors(lib: Any) -> Any:
    x, seed = leaf(lib, 3), ones(lib, 3)
    categories = warned(lambda: lib.autograd.backward(x * 2, grad_variables=seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        both = error_of(
            lambda: lib.autograd.backward(x * 2, seed, grad_variables=seed),
            "`grad_tensors` and `grad_variables` (deprecated) arguments both passed",
        )
    return x.grad, categories, both


# ---------------------------------------------------------------------- backward(inputs=...)


@paired("A11")
def test_inputs_limit_what_is_accumulated(lib: Any) -> Any:
    x, w, b = (leaf(lib, 3, seed=seed) for seed in range(3))
    loss = ((x * w + b) ** 2).sum()
    loss.backward(inputs=[w, w], retain_graph=True)
    first = x.grad, w.grad.clone(), b.grad
    loss.backward(inputs={"weight": w, "bias": b})
    return first, x.grad, w.grad, b.grad


@paired("A11")
def test_an_input_within_the_graph_gets_a_grad(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * 3
    z = (y * y).sum()
    before = y.retains_grad
    lib.autograd.backward(z, inputs=[y], retain_graph=True)
    lib.autograd.backward(z, inputs=[y, x])
    return before, y.retains_grad, y.grad, x.grad


@paired("A11")
def test_inputs_must_be_there_and_differentiable(lib: Any) -> Any:
    y = leaf(lib, 3).sum()
    return (
        error_of(lambda: y.backward(inputs=[]), "`inputs` argument to `backward()` cannot be"),
        error_of(lambda: y.backward(inputs={}), "cannot be empty"),
        error_of(lambda: y.backward(inputs=[ones(lib, 3)])),
        error_of(lambda: y.backward(inputs=OrderedDict(y=y)), "must be a dict, not OrderedDict"),
    )


@paired("A11", "A17")
def test_an_input_that_is_not_in_the_graph_is_left_alone(lib: Any) -> Any:
    x, elsewhere = leaf(lib, 3), leaf(lib, 3)
    (x * x).sum().backward(inputs=[elsewhere])
    return x.grad, elsewhere.grad


# ---------------------------------------------------------------------- GradientEdges


def edge_of(lib: Any, tensor: Any) -> Any:
    return lib.autograd.graph.get_gradient_edge(tensor)


@paired("A1", "A12")
def test_edges_stand_for_tensors_in_backward(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    y = (x * w).exp()
    lib.autograd.backward(
        [edge_of(lib, y)], [ones(lib, 3)], inputs=[edge_of(lib, x), x], retain_graph=True
    )
    inner = edge_of(lib, y)
    lib.autograd.backward(y.sum(), inputs=[inner, edge_of(lib, w)])
    return x.grad, w.grad, y.retains_grad


@paired("A12", "A15", "A21")
def test_edges_stand_for_tensors_in_grad(lib: Any) -> Any:
    x = leaf(lib, 3)
    middle = x.exp()
    edge = edge_of(lib, middle)
    end = edge_of(lib, (middle * middle).sum())
    both = lib.autograd.grad(end, [edge, x], retain_graph=True)
    del middle
    return both, lib.autograd.grad(edge, x, ones(lib, 3)), x.grad


@paired("A24")
def test_an_edge_with_one_element_has_an_implicit_seed(lib: Any) -> Any:
    x = leaf(lib, 3)
    scalar, vector = edge_of(lib, (x * x).sum()), edge_of(lib, x * 2)
    return (
        lib.autograd.grad(scalar, x),
        error_of(lambda: lib.autograd.grad(vector, x), "only for scalar outputs"),
        error_of(lambda: lib.autograd.grad(vector, x, ones(lib, 4)), "Mismatch in shape"),
    )


@paired("A12", "A18")
def test_no_zeros_are_made_for_an_edge(lib: Any) -> Any:
    x, unused = leaf(lib, 3), leaf(lib, 3)
    edges = [x, edge_of(lib, unused)]
    return (
        lib.autograd.grad(x.sum(), edges, allow_unused=True),
        error_of(
            lambda: lib.autograd.grad(x.sum(), edges, materialize_grads=True),
            "materialize_grads cannot be used when the given input is a GradientEdge",
        ),
    )


# ---------------------------------------------------------------------- grad()


@paired("A15")
def test_grad_touches_no_leaf(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    x.grad = ones(lib, 3)
    results = lib.autograd.grad((x * w * w).sum(), [x, w])
    return results, type(results).__name__, x.grad, w.grad


@paired("A15")
def test_the_rule_of_an_input_itself_is_not_run(lib: Any) -> Any:
    class Loud(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            raise ValueError("the rule ran")

    x = leaf(lib, 3)
    y = Loud.apply(x)
    z = (y * y).sum()
    only_y = lib.autograd.grad(z, y, retain_graph=True)
    both = error_of(lambda: lib.autograd.grad(z, [y, x]), "the rule ran")
    return only_y, both


@paired("A15")
def test_inputs_of_grad_must_be_there_and_differentiable(lib: Any) -> Any:
    x = leaf(lib, 3)
    return (
        error_of(lambda: lib.autograd.grad(x.sum(), []), "cannot be empty"),
        error_of(
            lambda: lib.autograd.grad(x.sum(), ones(lib, 3)),
            "One of the differentiated Tensors does not require grad",
        ),
        error_of(lambda: lib.autograd.grad(x.sum(), OrderedDict(x=x)), "must be a dict"),
    )


@paired("A15", "A16")
def test_a_dict_of_inputs_gives_a_dict(lib: Any) -> Any:
    x, w, unused = (leaf(lib, 3, seed=seed) for seed in range(3))
    inputs = {"w": w, "unused": unused, "x": x}
    return lib.autograd.grad((x * w).sum(), inputs, allow_unused=True)


@paired("A16", "A17")
def test_an_unused_input_is_an_error_unless_allowed(lib: Any) -> Any:
    x, unused = leaf(lib, 3), leaf(lib, 2)
    y = (x * x).sum()
    words = "appears to not have been used in the graph. Set allow_unused=True"
    refused = error_of(lambda: lib.autograd.grad(y, [x, unused], retain_graph=True), words)
    never_used_at_all = unused * 2
    return (
        refused,
        lib.autograd.grad(y, [unused, x], allow_unused=True, retain_graph=True),
        lib.autograd.grad(y, [never_used_at_all], allow_unused=True, retain_graph=True),
        error_of(lambda: lib.autograd.grad([], x), words),
    )


@paired("A16")
def test_a_tensor_behind_the_root_is_unused(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * 2
    z = (y * y).sum()
    (x_of_y,) = lib.autograd.grad(y.sum(), x, retain_graph=True)
    return x_of_y, lib.autograd.grad(y.sum(), [z, x], allow_unused=True)


@paired("A18")
def test_zeros_stand_for_what_is_unused(lib: Any) -> Any:
    x, unused = leaf(lib, 3), leaf(lib, 2, dtype="float32")
    y = (x * x).sum()
    return (
        lib.autograd.grad(y, [x, unused], materialize_grads=True, retain_graph=True),
        error_of(
            lambda: lib.autograd.grad(y, x, materialize_grads=True, allow_unused=False),
            "Expected allow_unused to be True or not passed",
        ),
    )


@paired("A18", "A25")
def test_create_graph_keeps_the_graph_and_makes_zeros_that_require_grad(lib: Any) -> Any:
    x, unused = leaf(lib, 3), leaf(lib, 2)
    y = (x * x * x).sum()
    first, zeros = lib.autograd.grad(y, [x, unused], create_graph=True, materialize_grads=True)
    again = lib.autograd.grad(y, x)  # kept by the default of retain_graph
    lost = error_of(lambda: lib.autograd.grad(y, x), "second time")
    z = (x * x * x).sum()
    (freed,) = lib.autograd.grad(z, x, create_graph=True, retain_graph=False)
    return first, zeros, again, lost, error_of(lambda: z.backward(), "second time"), freed


@paired("A19", "A25")
def test_a_batch_of_recorded_results(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * x * x
    identity = lib.eye(3, dtype=lib.float64)
    (jacobian,) = lib.autograd.grad(y, x, identity, is_grads_batched=True, create_graph=True)
    return jacobian, lib.autograd.grad(jacobian.diagonal().sum(), x)


@paired("A20")
def test_only_inputs_is_ignored(lib: Any) -> Any:
    x, results = leaf(lib, 3), []
    categories = warned(
        lambda: results.append(lib.autograd.grad((x * x).sum(), x, only_inputs=False))
    )
    return results, categories, x.grad


@paired("A21")
def test_grad_with_respect_to_tensors_on_one_path(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x.exp()
    z = y * y
    return lib.autograd.grad(z.sum(), [z, y, x])


@paired("A22")
def test_grad_with_respect_to_itself_is_the_seed(lib: Any) -> Any:
    x = leaf(lib, 3)
    y, seed = x * 2, lib.tensor(values(3, seed=4))
    return lib.autograd.grad(x, x, seed), lib.autograd.grad(y, y, seed), seed


@paired("A23")
def test_each_mention_of_an_input_has_its_result(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * x
    return lib.autograd.grad((y * 3).sum(), [x, x, y, y])


@row("A23")
def test_results_of_one_input_are_tensors_of_their_own() -> None:
    x = leaf(mg, 3)
    first, second = mg.autograd.grad((x * x).sum(), [x, x])
    first.zero_()  # PyTorch gives the same memory twice
    assert second.tolist() == (2 * x).tolist()


@paired("A29")
def test_gradients_of_slices_add_up(lib: Any) -> Any:
    x = leaf(lib, 4, 3)
    y = (x * x).exp()
    whole = lib.autograd.grad(y.sum(), x, retain_graph=True)
    parts = [lib.autograd.grad(y[i].sum(), x, retain_graph=True)[0] for i in range(4)]
    for i in range(4):
        y[i].sum().backward(retain_graph=True)
    return whole, sum(parts[1:], parts[0]), x.grad


# ---------------------------------------------------------------------- is_grads_batched


@paired("A19")
def test_a_batch_of_seeds_gives_a_batch_of_results(lib: Any) -> Any:
    x, w, unused = leaf(lib, 3), leaf(lib, 3, seed=1), leaf(lib, 2)
    y = (x * w).exp()
    identity = lib.eye(3, dtype=lib.float64)
    jacobians = lib.autograd.grad(
        y, [x, w, unused], identity, is_grads_batched=True, allow_unused=True, retain_graph=True
    )
    scalars = lib.autograd.grad(y.sum(), x, ones(lib, 2), is_grads_batched=True)
    return jacobians, scalars, error_of(lambda: y.sum().backward(), "second time")


@paired("A19")
def test_a_batch_of_seeds_must_fit(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * 2

    def batched(outputs: Any, seeds: Any) -> Any:
        return lib.autograd.grad(outputs, x, seeds, is_grads_batched=True)

    return (
        error_of(
            lambda: batched(y, ones(lib, 4, 2)),
            "If `is_grads_batched=True`, we interpret the first dimension of each grad_output",
        ),
        error_of(
            lambda: batched([y, y], [ones(lib, 2, 3), ones(lib, 4, 3)]),
            "Expected all tensors to have the same size in the mapped dimension",
        ),
        error_of(lambda: batched(y.sum(), None)),
    )


# ---------------------------------------------------------------------- subclasses


@paired("A27")
def test_a_subclass_may_take_over(lib: Any) -> Any:
    class Traced(lib.Tensor):
        calls: ClassVar[list[Any]] = []

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func.__name__ in ("backward", "grad"):
                cls.calls.append((func.__name__, sorted(kwargs or {})))
            return super().__torch_function__(func, types, args, kwargs)

    x = leaf(lib, 3)
    traced = x.detach().as_subclass(Traced) if lib is not mg else Traced(x.detach()._array)
    traced.requires_grad_()
    lib.autograd.backward(traced.sum(), inputs=[traced])
    lib.autograd.grad((x * x).sum() + traced.sum(), [x, traced])
    return Traced.calls, [list(map(float, traced.grad))]


@row("A27")
def test_the_most_derived_subclass_is_asked_first() -> None:
    asked = []

    class Shy(mg.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            asked.append(cls.__name__)
            return NotImplemented

    class Shyer(Shy):
        pass

    base, derived = Shy(values(3)).requires_grad_(), Shyer(values(3)).requires_grad_()
    with pytest.raises(TypeError, match=r"no implementation found for .*grad.*\[Shyer, Shy\]"):
        mg.grad((base * derived).sum(), [base, derived])
    assert asked == ["Shyer", "Shy"]
