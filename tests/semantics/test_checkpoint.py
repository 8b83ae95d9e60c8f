"""Group O: checkpointing, with and without a backward inside the backward."""

from __future__ import annotations

import functools
import gc
import threading
import warnings
import weakref
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.utils.checkpoint import checkpoint
from tests.semantics.checkpointed import BOTH, Counted, layers, tools
from tests.semantics.paired import error_of, leaf, paired, row

# ---------------------------------------------------------------------- both kinds


@paired("O1", "O2")
def test_gradients_are_those_of_the_function(lib: Any) -> Any:
    results = []
    for use_reentrant in BOTH:
        x, w = leaf(lib, 4), leaf(lib, 4, seed=1)
        function = Counted(lib, layers)
        y = tools(lib).checkpoint(function, x * 2, w, use_reentrant=use_reentrant)
        before = list(function.recorded)
        y.sum().backward()
        results.append((y, before, function.recorded, x.grad, w.grad))
    x, w = leaf(lib, 4), leaf(lib, 4, seed=1)
    layers(x * 2, w).sum().backward()
    return results, x.grad, w.grad


@paired("O1", "O2")
def test_leaves_that_are_no_arguments_get_gradients(lib: Any) -> Any:
    results = []
    for use_reentrant in BOTH:
        x, w = leaf(lib, 4), leaf(lib, 4, seed=1)

        def function(x: Any, w: Any = w) -> Any:
            return (x * w).exp()

        for _ in range(2):  # they add up
            y = tools(lib).checkpoint(function, x, use_reentrant=use_reentrant)
            (y * w).sum().backward()
        results.append((x.grad, w.grad))
    return results


@paired("O1", "O2")
def test_several_results_and_other_arguments(lib: Any) -> Any:
    def function(x: Any, scale: float, names: list[str], none: None) -> Any:
        assert names == ["a"]
        assert none is None
        return x.exp() * scale, "text", x.sin(), 3

    results = []
    for use_reentrant in BOTH:
        x = leaf(lib, 3)
        first, text, second, number = tools(lib).checkpoint(
            function, x, 2.5, ["a"], None, use_reentrant=use_reentrant
        )
        second.sum().backward(retain_graph=True)
        (first.sum() + second.sum()).backward()
        results.append((first, text, number, x.grad))
    return results


@paired("O1", "O2")
def test_checkpoints_one_after_another_and_side_by_side(lib: Any) -> Any:
    results = []
    for use_reentrant in BOTH:
        run = functools.partial(tools(lib).checkpoint, layers, use_reentrant=use_reentrant)
        x, w = leaf(lib, 4), leaf(lib, 4, seed=1)
        y = run(x, w)
        z = run(run(y, w), w) + run(y, x)
        z.sum().backward()
        results.append((x.grad, w.grad))
    return results


@paired("O1", "O2")
def test_without_recording_it_is_a_plain_call(lib: Any) -> Any:
    results = []
    for use_reentrant in BOTH:
        function = Counted(lib, layers)
        with lib.no_grad():
            y = tools(lib).checkpoint(
                function, leaf(lib, 3), leaf(lib, 3, seed=1), use_reentrant=use_reentrant
            )
        results.append((y, function.recorded))
    return results


# ---------------------------------------------------------------------- use_reentrant=True


@paired("O1")
def test_a_reentrant_checkpoint_needs_a_whole_backward(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = tools(lib).checkpoint(lambda x: x.exp(), x, use_reentrant=True).sum()
    words = "incompatible with .grad()", "`inputs` parameter"
    return (
        error_of(lambda: lib.autograd.grad(y, x, retain_graph=True), *words),
        error_of(lambda: y.backward(inputs=[x], retain_graph=True), *words),
        x.grad,
        y.backward(),
        x.grad,
    )


@paired("O1")
def test_a_reentrant_checkpoint_inside_a_partial_backward_of_a_hook(lib: Any) -> Any:
    """It does not help to begin a whole backward inside: the outer one wants only ``x``."""
    x, z = leaf(lib, 3), leaf(lib, 3, seed=1)
    inner = tools(lib).checkpoint(lambda z: z.exp(), z, use_reentrant=True).sum()
    errors = []

    def hook(_: Any) -> None:
        errors.append(error_of(inner.backward, "incompatible with .grad()"))

    y = x * 2
    y.register_hook(hook)
    return lib.autograd.grad(y.sum(), x), errors


@paired("O1")
def test_a_reentrant_checkpoint_without_gradients(lib: Any) -> Any:
    x = leaf(lib, 3)
    check = tools(lib).checkpoint
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        unrecorded = check(lambda x: x.exp(), x.detach(), use_reentrant=True)
    y = check(lambda x: x.detach(), x, use_reentrant=True)
    return (
        [(w.category.__name__, "None of the inputs have requires_grad=True" in str(w.message))
         for w in seen],
        unrecorded.requires_grad,
        error_of(y.sum().backward, "none of output has requires_grad=True"),
    )  # fmt: skip


@paired("O1")
def test_a_reentrant_checkpoint_looks_at_arguments_only(lib: Any) -> Any:
    x = leaf(lib, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = tools(lib).checkpoint(lambda pair: pair[0].exp(), [x], use_reentrant=True)
    again = tools(lib).checkpoint(lambda pair: pair[0].exp(), [x], use_reentrant=False)
    again.sum().backward()
    return y.requires_grad, x.grad


@paired("O3")
def test_unset_it_warns_and_is_reentrant(lib: Any) -> Any:
    x, found = leaf(lib, 3), []
    for call in (
        lambda: tools(lib).checkpoint(lambda x: x.exp(), x),
        lambda: tools(lib).checkpoint_sequential([lambda x: x.exp(), lambda x: x.sin()], 2, x),
    ):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            y = call().sum()
        text = "the use_reentrant parameter should be passed explicitly"
        found.append([(w.category.__name__, text in str(w.message)) for w in seen])
        found.append(error_of(lambda y=y: lib.autograd.grad(y, x), "use_reentrant=True"))  # type: ignore[misc]
    return found


# ---------------------------------------------------------------------- use_reentrant=False


@paired("O2")
def test_it_is_called_again_once_for_each_backward(lib: Any) -> Any:
    x, w = leaf(lib, 4), leaf(lib, 4, seed=1)
    function = Counted(lib, layers)
    y = tools(lib).checkpoint(function, x, w, use_reentrant=False).sum()
    counts = [len(function.recorded)]
    for _ in range(2):
        y.backward(retain_graph=True)
        counts.append(len(function.recorded))
    gradients = lib.autograd.grad(y, (x, w), retain_graph=True)
    counts.append(len(function.recorded))
    y.backward(inputs=[w])
    counts.append(len(function.recorded))
    return counts, gradients, x.grad, w.grad, error_of(y.backward, "a second time")


@paired("O2")
def test_it_is_called_again_only_if_something_is_needed(lib: Any) -> Any:
    x = leaf(lib, 3)
    function = Counted(lib, lambda x: x + 1)
    y = tools(lib).checkpoint(function, x, use_reentrant=False)
    y.sum().backward()
    other = Counted(lib, lambda x: (x.exp(), x.sin()))
    a, _ = tools(lib).checkpoint(other, x, use_reentrant=False)
    assert len(other.recorded) == 1
    a.sum().backward()
    return function.recorded, other.recorded, x.grad


@paired("O2")
def test_nothing_inside_is_kept(lib: Any) -> Any:
    x, seen = leaf(lib, 3), []

    def function(x: Any) -> Any:
        y = x * x
        seen.append(weakref.ref(y))
        return y.exp().sin().cos()

    y = tools(lib).checkpoint(function, x, use_reentrant=False)
    gc.collect()
    alive = [reference() is not None for reference in seen]
    y.sum().backward()
    gc.collect()
    return alive, [reference() is not None for reference in seen], x.grad


@paired("O2")
def test_another_number_of_saved_tensors_is_an_error(lib: Any) -> Any:
    x, check = leaf(lib, 3), tools(lib).checkpoint
    errors = []
    for first, second, early_stop, words in (
        (lambda x: x.exp(), lambda x: x + 1, True, "A different number of tensors was saved"),
        (lambda x: x.exp().exp(), lambda x: x.exp(), True, "A different number of tensors"),
        (lambda x: x.exp(), lambda x: x.exp().exp(), False, "trying to save more tensors"),
    ):
        calls = iter((first, second))
        y = check(lambda x: next(calls)(x), x, use_reentrant=False, early_stop=early_stop)  # noqa: B023
        error = error_of(y.sum().backward, words)
        assert type(error) is tools(lib).CheckpointError
        errors.append(error)
    return errors, x.grad


@paired("O2", "O5")
def test_tensors_that_look_different_are_an_error(lib: Any) -> Any:
    x, check = leaf(lib, 4), tools(lib).checkpoint

    def make(determinism_check: str) -> Any:
        calls = iter((lambda x: x.exp(), lambda x: x[:1].exp()))
        return check(
            lambda x: next(calls)(x).sum() * 2.0,
            x,
            use_reentrant=False,
            determinism_check=determinism_check,
        )

    error = error_of(
        make("default").backward, "have different metadata", "position 0", "saved metadata"
    )
    make("none").backward()  # exp's first element is used for all: wrong, but asked for
    return error, x.grad


@paired("O2")
def test_a_function_inside_may_read_its_saved_tensors_once(lib: Any) -> Any:
    class Square(lib.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grad * 2 * x

    class Twice(Square):
        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,), (again,) = ctx.saved_tensors, ctx.saved_tensors
            return grad * (x + again)

    x, check = leaf(lib, 3), tools(lib).checkpoint
    check(lambda x: Square.apply(x * 2).exp(), x, use_reentrant=False).sum().backward()
    y = check(lambda x: Twice.apply(x), x, use_reentrant=False).sum()
    return x.grad, error_of(y.backward, "already unpacked once")


@paired("O2")
def test_arguments_are_checked_for_changes(lib: Any) -> Any:
    x = leaf(lib, 3) * 1
    y = tools(lib).checkpoint(lambda x: x.exp() * x, x, use_reentrant=False)
    with lib.no_grad():
        x.mul_(2)
    return error_of(y.sum().backward, "modified by an inplace operation", "version 1")


@paired("O2", "F5")
def test_looking_at_saved_tensors_calls_again_each_time(lib: Any) -> Any:
    x = leaf(lib, 3)
    function = Counted(lib, lambda x: x * x)
    y = tools(lib).checkpoint(function, x, use_reentrant=False)
    looked = y.grad_fn._saved_self, y.grad_fn._saved_self
    y.sum().backward()
    return looked, len(function.recorded), x.grad


@paired("O2", "O6")
def test_tensors_in_lists_and_keywords_take_part(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)

    def function(values: list[Any], *, extra: Any, power: int) -> Any:
        return (values[0] * extra) ** power

    y = tools(lib).checkpoint(function, [x], extra=w, power=3, use_reentrant=False)
    y.sum().backward()
    return x.grad, w.grad


@paired("O2")
def test_errors_of_the_function_arrive(lib: Any) -> Any:
    x = leaf(lib, 3)
    calls = []

    def function(x: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyError("second")
        return x.exp()

    def fail(x: Any) -> Any:
        raise KeyError("first")

    check = tools(lib).checkpoint
    first = error_of(lambda: check(fail, x, use_reentrant=False), "first")
    y = check(function, x, use_reentrant=False).sum()
    second = error_of(lambda: y.backward(retain_graph=True), "second")
    y.backward()  # the third call succeeds
    return first, second, len(calls), x.grad


# ---------------------------------------------------------------------- random numbers (O4)


@paired("O4")
def test_both_calls_draw_the_same_random_numbers(lib: Any) -> Any:
    """Their values differ between the libraries, so what is seen is whether they agree."""
    seen = []
    for use_reentrant in BOTH:
        for preserve in (True, False):
            lib.manual_seed(0)
            x, drawn = leaf(lib, 8), []

            def function(x: Any, drawn: list[Any] = drawn) -> Any:
                drawn.append(lib.rand(8, dtype=lib.float64))
                return x.exp() * drawn[-1]

            y = tools(lib).checkpoint(
                function, x, use_reentrant=use_reentrant, preserve_rng_state=preserve
            )
            between = lib.get_rng_state()
            y.sum().backward()
            first, second = drawn
            unchanged = bool((lib.get_rng_state() == between).all())
            right = bool((x.grad == (x.exp() * second).detach()).all())
            seen.append((bool((first == second).all()), unchanged, right))
    return seen


@paired("O4")
def test_dropout_drops_the_same(lib: Any) -> Any:
    lib.manual_seed(3)
    seen = []
    for use_reentrant in BOTH:
        x = leaf(lib, 50)
        y = tools(lib).checkpoint(
            lambda x: lib.nn.functional.dropout(x, 0.5).exp() * x, x, use_reentrant=use_reentrant
        )
        y.sum().backward()
        kept = y.detach() != x.detach()  # a dropped element gives exp(0) * x
        expected = lib.where(kept, y.detach() * (2 + 1 / x.detach()), lib.ones_like(y))
        assert bool((abs(x.grad - expected) < 1e-9).all())
        seen.append(bool(kept.any()) and not bool(kept.all()))
    return seen


@paired("O4")
def test_the_state_of_the_generator(lib: Any) -> Any:
    lib.manual_seed(1)
    lib.rand(3)  # an odd number: half a draw may be left over
    state = lib.get_rng_state()
    first = lib.rand(5), lib.randn(5), lib.randint(0, 9, (3,))
    lib.set_rng_state(state)
    second = lib.rand(5), lib.randn(5), lib.randint(0, 9, (3,))
    return (
        [bool((a == b).all()) for a, b in zip(first, second, strict=True)],
        state.dtype,
        error_of(lambda: lib.set_rng_state(lib.ones(3))),
        error_of(lambda: lib.set_rng_state(3)),
        error_of(lambda: lib.set_rng_state(lib.ones(3, dtype=lib.uint8)), "size"),
    )


# ---------------------------------------------------------------------- where it runs


@row("O2", "E8")
def test_a_checkpoint_makes_no_cycle() -> None:
    gc.disable()
    try:
        x = leaf(mg, 3)
        y = checkpoint(lambda x: (x * 2).exp().sin(), x, use_reentrant=False)
        with mg.Engine("local"):
            mg.autograd.grad(y.sum(), x, retain_graph=True)
        nodes = [weakref.ref(y.grad_fn), weakref.ref(y.grad_fn.next_functions[0][0])]
        handle = y.grad_fn._raw_saved_self
        assert handle.unpack() is not None
        del y, handle
        assert [node() for node in nodes] == [None, None]
    finally:
        gc.enable()


@paired("O2")
def test_checkpoints_on_two_threads(lib: Any) -> Any:
    """Each thread packs and computes again on its own; both use one function."""
    results: dict[int, Any] = {}

    def work(number: int) -> None:
        x, w = leaf(lib, 4, seed=number), leaf(lib, 4, seed=9)
        for _ in range(5):
            y = tools(lib).checkpoint(layers, x, w, use_reentrant=False)
            y.sum().backward()
        results[number] = x.grad, w.grad

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(2)]


@row("O2")
@pytest.mark.process
def test_the_nodes_of_a_checkpoint_run_in_the_calling_process(process_engine: mg.Engine) -> None:
    x = leaf(mg, 3)
    y = (checkpoint(lambda x: x.exp(), x.sin(), use_reentrant=False) * x).sum()
    where = {node.name: node.where for node in process_engine.explain(y).nodes}
    assert where["ExpBackward0"] == "client"
    assert where["SinBackward0"] == where["MulBackward0"] == "worker"


@paired("O2")
def test_what_needs_no_grad_is_saved_as_it_is(lib: Any) -> Any:
    seen = []

    class Second(lib.autograd.Function):  # type: ignore[misc, name-defined]
        run_on = "client"

        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(y)
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            seen.append(ctx.saved_tensors[0] is constant)
            return grad, None

    constant = leaf(lib, 2).detach()
    checkpointed = tools(lib).checkpoint(Second.apply, leaf(lib, 2), constant, use_reentrant=False)
    checkpointed.sum().backward()
    return seen
