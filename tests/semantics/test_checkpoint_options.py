"""Group O: options of checkpoints, combinations, selective ones, sequences."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import mpgrad as mg
from mpgrad.recording.dispatch.operator_mode import OperatorMode
from mpgrad.utils.checkpoint import SelectiveCheckpointContext, checkpoint
from tests.semantics.checkpointed import BOTH, Counted, layers, tools
from tests.semantics.paired import error_of, leaf, paired, row

# ---------------------------------------------------------------------- options (O5)


@paired("O5")
def test_options_that_do_not_go_together(lib: Any) -> Any:
    x, check = leaf(lib, 3), tools(lib).checkpoint

    def run(**kwargs: Any) -> Any:
        return error_of(lambda: check(lambda x: x.exp(), x, **kwargs))

    two = lambda: (nullcontext(), nullcontext())  # noqa: E731
    errors = [
        run(use_reentrant=True, extra=1),
        run(use_reentrant=True, debug=True),
        run(use_reentrant=True, context_fn=two),
        run(use_reentrant=False, determinism_check="strict"),
        run(use_reentrant=False, debug=True, context_fn=two),
    ]
    with tools(lib).set_checkpoint_debug_enabled(True):
        errors.append(run(use_reentrant=False, context_fn=two))
    with tools(lib).set_checkpoint_debug_enabled(False):
        check(lambda x: x.exp(), x, use_reentrant=False, debug=True, context_fn=two)
    return errors, all(type(error) is ValueError for error in errors)


@paired("O5")
def test_debug_shows_the_operators_of_both_calls(lib: Any) -> Any:
    x, check = leaf(lib, 3), tools(lib).checkpoint
    errors = []
    everywhere = tools(lib).set_checkpoint_debug_enabled(True)
    for enable, debug in ((nullcontext(), True), (everywhere, False)):
        calls = iter((lambda x: x.sin().exp(), lambda x: x.cos()))
        with enable:
            y = check(lambda x: next(calls)(x), x, use_reentrant=False, debug=debug)  # noqa: B023
        error = error_of(
            y.sum().backward, "sin", "exp", "cos", "original forward", "recomputation",
            "Detected non-determinism", __file__,
        )  # fmt: skip
        # Not the text itself: the stack of the second call depends on the mode.
        errors.append((type(error).__name__, error.__cause__))
    return errors


@contextmanager
def _noting(seen: list[str], name: str) -> Iterator[None]:
    seen.append(f"enter {name}")
    try:
        yield
    finally:
        seen.append(f"leave {name}")


@paired("O5")
def test_contexts_of_both_calls(lib: Any) -> Any:
    x, seen = leaf(lib, 3), []

    def function(x: Any) -> Any:
        seen.append("call")
        return x.exp().sin()

    y = tools(lib).checkpoint(
        function,
        x,
        use_reentrant=False,
        context_fn=lambda: (_noting(seen, "forward"), _noting(seen, "again")),
    )
    y.sum().backward()
    return seen, x.grad


@paired("O5")
def test_a_context_may_not_swallow_errors(lib: Any) -> Any:
    @contextmanager
    def swallow() -> Iterator[None]:
        with suppress(ValueError):
            yield

    def fail(x: Any) -> Any:
        raise ValueError("mine")

    check = functools.partial(tools(lib).checkpoint, fail, leaf(lib, 3), use_reentrant=False)
    return (
        error_of(check, "mine"),
        error_of(
            lambda: check(context_fn=lambda: (swallow(), nullcontext())), "suppressed an exception"
        ),
    )


# ---------------------------------------------------------------------- combinations (O6)


@paired("O6")
def test_nested_checkpoints(lib: Any) -> Any:
    """Each level computes its part again: the innermost function is called once per level."""
    check = functools.partial(tools(lib).checkpoint, use_reentrant=False)
    x, w = leaf(lib, 4), leaf(lib, 4, seed=1)
    inner = Counted(lib, layers)

    def middle(x: Any) -> Any:
        return check(inner, x.sin(), w).exp()

    def outer(x: Any) -> Any:
        return check(middle, x * w).tanh()

    y = check(outer, x)
    counts = [len(inner.recorded)]
    y.sum().backward(retain_graph=True)
    counts.append(len(inner.recorded))
    y.sum().backward()
    return counts, len(inner.recorded), x.grad, w.grad


@paired("O6")
def test_nested_checkpoints_of_both_kinds(lib: Any) -> Any:
    results = []
    for outer_kind, inner_kind in ((True, True), (True, False), (False, True)):
        x, w = leaf(lib, 4), leaf(lib, 4, seed=1)

        def outer(x: Any, w: Any, kind: bool = inner_kind) -> Any:
            return tools(lib).checkpoint(layers, x.sin(), w, use_reentrant=kind).exp()

        y = tools(lib).checkpoint(outer, x, w, use_reentrant=outer_kind)
        y.sum().backward()
        results.append((x.grad, w.grad))
    return results


@paired("O6")
def test_early_stop_can_be_switched_off(lib: Any) -> Any:
    x, reached = leaf(lib, 3), []
    check, switch = tools(lib).checkpoint, tools(lib).set_checkpoint_early_stop

    def function(x: Any) -> Any:
        y = x.exp()
        reached.append("end")
        return y

    counts = []
    for context, early_stop in (
        (nullcontext(), True),
        (nullcontext(), False),
        (switch(False), True),
        (switch(True), False),
    ):
        reached.clear()
        with context:
            y = check(function, x, use_reentrant=False, early_stop=early_stop)
        y.sum().backward()
        counts.append(len(reached))
    return counts, x.grad


@paired("O6")
def test_a_backward_inside_the_function(lib: Any) -> Any:
    results = []
    for early_stop in (True, False):
        x = leaf(lib, 3)

        def function(x: Any) -> Any:
            y = x.exp().sin()
            (inner,) = lib.autograd.grad(y.sum(), x, retain_graph=True)
            return y * inner

        y = tools(lib).checkpoint(function, x, use_reentrant=False, early_stop=early_stop)
        y.sum().backward()
        results.append(x.grad)
    return results


@paired("O6")
def test_two_functions_that_share_tensors(lib: Any) -> Any:
    x = leaf(lib, 3)
    shared = {}

    def first(x: Any) -> Any:
        shared["y"] = x.exp()
        return shared["y"].sin()

    a = tools(lib).checkpoint(first, x, use_reentrant=False)
    b = tools(lib).checkpoint(lambda a: a * shared["y"], a, use_reentrant=False)
    (a + b).sum().backward()
    return x.grad


@paired("O6", "I16")
def test_checkpoints_can_be_differentiated_twice(lib: Any) -> Any:
    x, w = leaf(lib, 4), leaf(lib, 4, seed=1)
    y = tools(lib).checkpoint(layers, x, w, use_reentrant=False)
    (first,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    (first * first).sum().backward()
    return first, x.grad, w.grad


@paired("O6")
def test_a_penalty_on_gradients_through_a_checkpoint(lib: Any) -> Any:
    """The graph of the gradient ends inside the checkpointed region."""
    x, w = leaf(lib, 4), leaf(lib, 4, seed=1)
    h = x * x
    y = tools(lib).checkpoint(layers, h, w, use_reentrant=False).sum()
    (gradient,) = lib.autograd.grad(y, h, create_graph=True)
    (y + (gradient * gradient).sum()).backward()
    return x.grad, w.grad


@paired("O6", "I7")
def test_checkpoints_beside_other_hooks(lib: Any) -> Any:
    x, w, packed = leaf(lib, 4), leaf(lib, 4, seed=1), []

    def pack(tensor: Any) -> Any:
        packed.append(tuple(tensor.shape))
        return tensor.detach()

    def function(x: Any, w: Any) -> Any:
        with lib.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = (x * w).exp()
        return y.sin()

    with lib.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = tools(lib).checkpoint(function, x.tanh(), w, use_reentrant=False).cos()
    before = len(packed)
    y.sum().backward()
    return before, len(packed), x.grad, w.grad


@paired("O6")
def test_hooks_on_tensors_inside_a_checkpoint(lib: Any) -> Any:
    results = []
    for use_reentrant in BOTH:
        x, seen = leaf(lib, 3), []

        def function(x: Any, seen: list[Any] = seen) -> Any:
            y = x.exp()
            if y.requires_grad:
                y.register_hook(lambda g: seen.append(g.clone()))
            return y.sin()

        y = tools(lib).checkpoint(function, x, use_reentrant=use_reentrant)
        y.sum().backward()
        results.append((seen, x.grad))
    return results


@paired("O6", "O2")
def test_a_group_of_backwards_shares_the_second_call(lib: Any) -> Any:
    x = leaf(lib, 3)
    function = Counted(lib, lambda x: (x.exp(), x.sin()))
    kit = tools(lib)
    first, second = kit.checkpoint(function, x, use_reentrant=False)
    group = kit.GraphExecGroup()
    with group:
        nested = error_of(kit.GraphExecGroup().__enter__, "cannot be nested")
        first.sum().backward(retain_graph=True)
        second.sum().backward(retain_graph=True)
        count = len(function.recorded)
        overlapping = error_of(first.sum().backward, "already unpacked once", "GraphExecGroup")
    first.sum().backward()
    return count, len(function.recorded), nested, overlapping, x.grad


# ---------------------------------------------------------------------- selective (O7)


def _matmul(lib: Any) -> Any:
    """What the library calls the product of two matrices."""
    return "matmul" if lib is mg else lib.ops.aten.mm.default


@paired("O7")
def test_results_of_chosen_operators_are_kept(lib: Any) -> Any:
    kit, x, w = tools(lib), leaf(lib, 3, 3), leaf(lib, 3, 3, seed=1)

    def function(x: Any, w: Any) -> Any:
        return ((x @ w).exp() @ w).sin()

    keep = functools.partial(kit.create_selective_checkpoint_contexts, [_matmul(lib)])
    y = kit.checkpoint(function, x, w, use_reentrant=False, context_fn=keep)
    y.sum().backward(retain_graph=True)
    gradients = x.grad.clone(), w.grad.clone()
    return gradients, error_of(y.sum().backward, "Trying to backward an extra time")


@paired("O7")
def test_a_policy_is_asked_in_the_first_call(lib: Any) -> Any:
    kit, x, asked = tools(lib), leaf(lib, 3, 3), []
    policies = iter([kit.CheckpointPolicy.MUST_SAVE, False, True, kit.CheckpointPolicy(3)])

    def policy(ctx: Any, operator: Any, *inputs: Any, **attributes: Any) -> Any:
        asked.append((ctx.is_recompute, ctx.op_output.detach(), len(inputs)))
        return next(policies)

    y = kit.checkpoint(
        lambda x: x.exp().sin().cos().tanh(),
        x,
        use_reentrant=False,
        context_fn=lambda: kit.create_selective_checkpoint_contexts(policy),
    )
    count = len(asked)
    y.sum().backward()
    return asked, count, x.grad


@paired("O7")
def test_kept_results_may_not_change(lib: Any) -> Any:
    kit, errors = tools(lib), []
    for allowed in (False, True):
        x = leaf(lib, 3, 3)

        def function(x: Any) -> Any:
            return (x @ x).mul_(2).exp()

        y = kit.checkpoint(
            function,
            x,
            use_reentrant=False,
            context_fn=functools.partial(
                kit.create_selective_checkpoint_contexts,
                [_matmul(lib)],
                allow_cache_entry_mutation=allowed,
            ),
        ).sum()
        if allowed:
            y.backward()
        else:
            errors.append(error_of(y.backward, "has been mutated"))
    return errors


@paired("O7")
def test_a_function_that_calls_other_operators_is_found_out(lib: Any) -> Any:
    kit, x = tools(lib), leaf(lib, 3, 3)
    calls = iter((lambda x: x.exp(), lambda x: (-x).exp()))
    y = kit.checkpoint(
        lambda x: next(calls)(x),
        x,
        use_reentrant=False,
        context_fn=lambda: kit.create_selective_checkpoint_contexts([_matmul(lib)]),
    )
    make = kit.create_selective_checkpoint_contexts
    return (
        error_of(y.sum().backward, "encountered during backward", "not found in storage"),
        error_of(lambda: make(3), "must be either a function or a list of ops"),
        error_of(lambda: make([3]), "Expected op in `op_list`"),
    )


@row("O7")
def test_a_kept_operator_does_not_run_again() -> None:
    runs: list[str] = []

    class Count(OperatorMode):
        def forward(self, operator: Any, inputs: Any, attributes: Any, run: Any) -> Any:
            runs.append(operator.name)
            return run()

    def policy(ctx: SelectiveCheckpointContext, operator: Any, *args: Any, **kwargs: Any) -> bool:
        return bool(operator.name == "exp")

    x = leaf(mg, 3)
    keep = functools.partial(mg.utils.checkpoint.create_selective_checkpoint_contexts, policy)
    with Count(), mg.Engine("local"):
        y = checkpoint(lambda x: x.exp().sin().exp(), x, use_reentrant=False, context_fn=keep)
        forward = list(runs)
        runs.clear()
        y.sum().backward()
    assert forward == ["exp", "sin", "exp"]
    assert runs == ["sum", "sin"]


# ---------------------------------------------------------------------- sequences (O8)


@paired("O8")
def test_a_sequence_in_segments(lib: Any) -> Any:
    results = []
    for use_reentrant in BOTH:
        for segments in (1, 2, 3, 5):
            x = leaf(lib, 4)
            steps = [
                Counted(lib, lambda x, scale=scale: (x * scale).sin()) for scale in range(2, 7)
            ]
            y = tools(lib).checkpoint_sequential(steps, segments, x, use_reentrant=use_reentrant)
            y.sum().backward()
            results.append((y, x.grad, [len(step.recorded) for step in steps]))
    wrong = error_of(
        lambda: tools(lib).checkpoint_sequential([abs], 1, x, use_reentrant=False, other=1), "other"
    )
    return results, wrong


@paired("O8")
def test_a_sequential_module_in_segments(lib: Any) -> Any:
    results = []
    for use_reentrant in BOTH:
        lib.manual_seed(0)
        model = lib.nn.Sequential(
            lib.nn.Linear(3, 4), lib.nn.Tanh(), lib.nn.Linear(4, 4), lib.nn.Tanh()
        )
        with lib.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.copy_(leaf(lib, *parameter.shape, seed=number, dtype="float32"))
        x = leaf(lib, 2, 3, dtype="float32")
        tools(lib).checkpoint_sequential(model, 2, x, use_reentrant=use_reentrant).sum().backward()
        results.append((x.grad, [parameter.grad for parameter in model.parameters()]))
    return results
