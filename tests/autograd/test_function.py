"""Custom Functions: recording, ctx, and the checks on what backward returns (torch: oracle)."""

from __future__ import annotations

import gc
import importlib
import threading
import weakref
from typing import ClassVar

import numpy as np
import pytest

from mpgrad.autograd.function import (
    Function,
    FunctionNode,
    once_differentiable,
    run_function_backward,
)
from mpgrad.recording.dispatch import operator_call as dispatch
from mpgrad.recording.graph.grad_modes import is_grad_enabled, no_grad
from mpgrad.recording.graph.node import InputMetadata, Node
from mpgrad.recording.tensors.accumulate_grad import AccumulateGrad
from mpgrad.recording.tensors.tensor import Tensor

if importlib.util.find_spec("mpgrad.tensor_methods"):
    importlib.import_module("mpgrad.tensor_methods")


def leaf(*values, dtype=np.float32):
    return Tensor(np.array(values, dtype), requires_grad=True)


def backward(output, seed=None, release=True):
    """The serial engine in ten lines: highest sequence_nr first."""
    seed = np.ones(output.shape, output.dtype) if seed is None else seed
    buffers = {output.grad_fn: {output.output_nr: seed}}
    while buffers:
        node = max(buffers, key=lambda n: n.sequence_nr if not is_leaf(n) else -1)
        arrived = buffers.pop(node)
        if is_leaf(node):
            node.accumulate(arrived[0], exclusive=False)
            continue
        grads = [arrived.get(i) for i in range(len(node.input_metadata))]
        needs = [edge is not None for edge in node.next_edges]
        for edge, grad in zip(node.next_edges, node.apply(dispatch.cpu, grads, needs), strict=True):
            if edge is not None and grad is not None:
                slots = buffers.setdefault(edge[0], {})
                before = slots.get(edge[1])
                slots[edge[1]] = grad if before is None else before + grad
        if release:
            node.release_saved()


def is_leaf(node: Node) -> bool:
    return isinstance(node, AccumulateGrad)


class Scale(Function):
    """y = factor * x * x, with saved tensor and attribute."""

    @staticmethod
    def forward(ctx, x, factor=1.0):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return factor * x._array * x._array

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * ctx.factor * x._array * grad._array, None


class TwoOutputs(Function):
    seen: ClassVar[list[object]] = []

    @staticmethod
    def forward(ctx, x):
        return x._array * 2, x._array * 3

    @staticmethod
    def backward(ctx, first, second):
        TwoOutputs.seen.append((first, second))
        return None if second is None else second._array * 3


def returning(value, forward=lambda ctx, *args: args[0]._array * 2):
    """A Function whose backward returns ``value`` (or what it makes of the gradients)."""

    class Returning(Function):
        @staticmethod
        def forward(ctx, *args):
            return forward(ctx, *args)

        @staticmethod
        def backward(ctx, *grads):
            return value(ctx, *grads) if callable(value) else value

    return Returning


class TestRecording:
    def test_gradient_of_a_saved_tensor_and_an_attribute(self):
        x = leaf(1, 2, 3)
        backward(Scale.apply(x, 4.0))
        np.testing.assert_array_equal(x.grad._array, [8, 16, 24])

    def test_one_node_with_one_edge_per_argument(self):
        x = leaf(1)
        y = Scale.apply(x, 4.0)
        assert isinstance(y.grad_fn, FunctionNode)
        assert y.grad_fn.name() == "ScaleBackward"
        assert [edge is not None for edge in y.grad_fn.next_edges] == [True, False]
        assert y.requires_grad
        assert not y.is_leaf

    def test_forward_runs_with_recording_off(self):
        modes = []
        function = returning(None, lambda ctx, x: modes.append(is_grad_enabled()) or x._array * 2)
        function.apply(leaf(1))
        assert modes == [False]

    def test_nothing_is_recorded_without_a_tensor_that_requires_grad(self):
        assert Scale.apply(Tensor(np.ones(2))).grad_fn is None
        with no_grad():
            assert Scale.apply(leaf(1)).grad_fn is None

    def test_tensors_inside_lists_are_not_tracked(self):
        function = returning(None, lambda ctx, xs: xs[0]._array * 2)
        assert function.apply([leaf(1)]).grad_fn is None

    def test_the_graph_dies_with_its_output(self):
        y = Scale.apply(leaf(1, 2))
        node = weakref.ref(y.grad_fn)
        gc.disable()
        try:
            del y
            assert node() is None  # no cycle between Node, ctx and saved tensors
        finally:
            gc.enable()

    def test_a_saved_output_makes_no_cycle(self):
        class Exp(Function):
            @staticmethod
            def forward(ctx, x):
                y = Tensor(np.exp(x._array))
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx, grad):
                (y,) = ctx.saved_tensors
                assert y.grad_fn is not None
                return grad._array * y._array

        x = leaf(0.0, 1.0)
        y = Exp.apply(x)
        backward(y)
        np.testing.assert_array_equal(x.grad._array, np.exp(x._array))
        node = weakref.ref(y.grad_fn)
        del y
        assert node() is None


class TestOutputs:
    def test_numpy_scalars_and_arrays_become_tensors(self):
        function = returning(None, lambda ctx, x: (np.sum(x._array), x._array * 2))
        total, doubled = function.apply(leaf(1, 2))
        assert isinstance(total, Tensor)
        assert total.shape == ()
        assert doubled.output_nr == 1

    def test_other_outputs_pass_through_and_get_no_gradient(self):
        seen = []
        function = returning(
            lambda ctx, *grads: seen.extend(grads) or grads[0],
            lambda ctx, x: (x._array * 2, 3, "a", None, np.argmax(x._array)),
        )
        y, three, text, nothing, index = function.apply(leaf(1, 2))
        assert (three, text, nothing) == (3, "a", None)
        assert not index.requires_grad
        backward(y)
        assert seen[1:4] == [None, None, None]
        assert seen[4]._array == 0  # zeros for a tensor that has no gradient, as in PyTorch

    def test_an_input_returned_unchanged_is_a_new_tensor(self):
        x = leaf(1, 2)
        y = returning(lambda ctx, grad: grad, lambda ctx, x: x).apply(x)
        assert y is not x
        assert x.is_leaf
        assert y._version_counter is x._version_counter
        backward(y)
        np.testing.assert_array_equal(x.grad._array, [1, 1])

    def test_an_input_returned_as_its_array_shares_the_version(self):
        x = leaf(1, 2)
        y = returning(None, lambda ctx, x: x._array).apply(x)
        assert y._version_counter is x._version_counter

    def test_a_tensor_of_another_graph_keeps_its_history(self):
        other = Scale.apply(leaf(1, 2))
        before = other.grad_fn
        y = returning(None, lambda ctx, x: other).apply(leaf(1, 2))
        assert other.grad_fn is before
        assert y.grad_fn is not before

    def test_the_same_tensor_twice(self):
        def forward(ctx, x):
            z = Tensor(x._array * 2)
            return z, z

        a, b = returning(
            lambda ctx, first, second: Tensor(first._array + second._array), forward
        ).apply(x := leaf(1, 2))
        assert a is b
        assert a.output_nr == 1
        backward(a)
        np.testing.assert_array_equal(x.grad._array, [1, 1])

    def test_mark_non_differentiable_spares_an_alias(self):
        def forward(ctx, x):
            y = Tensor(x._array * 2)
            alias = Tensor(y._array)
            ctx.mark_non_differentiable(alias)
            return y, alias

        y, alias = returning(lambda ctx, first, second: first, forward).apply(leaf(1))
        assert y.requires_grad
        assert not alias.requires_grad


class TestContext:
    def test_setup_context_and_defaults(self):
        class Power(Function):
            @staticmethod
            def forward(x, exponent=3):
                return x._array**exponent

            @staticmethod
            def setup_context(ctx, inputs, output):
                x, ctx.exponent = inputs
                ctx.save_for_backward(x)

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                k = ctx.exponent
                return grad._array * k * x._array ** (k - 1), None

        x = leaf(2)
        backward(Power.apply(x))
        assert x.grad._array == 12
        x.grad = None
        backward(Power.apply(x, exponent=2))
        assert x.grad._array == 4

    def test_keywords_are_put_in_order(self):
        x = leaf(1)
        backward(Scale.apply(x, factor=2.0))
        assert x.grad._array == 4
        with pytest.raises(TypeError, match="unexpected keyword argument 'power'"):
            Scale.apply(x, power=2.0)

    def test_save_for_backward_takes_tensors_only(self):
        function = returning(None, lambda ctx, x: ctx.save_for_backward(x, 3))
        with pytest.raises(TypeError, match="can only save variables, but argument 1 is of type"):
            function.apply(leaf(1))

    def test_a_saved_input_is_the_same_object(self):
        x = leaf(1)
        assert Scale.apply(x).grad_fn.saved_tensors[0] is x

    def test_a_second_backward_is_an_error(self):
        y = Scale.apply(leaf(1))
        backward(y)
        with pytest.raises(RuntimeError, match="through the graph a second time"):
            backward(y)
        with pytest.raises(RuntimeError, match="through the graph a second time"):
            y.grad_fn.portable_context()

    def test_without_saved_tensors_it_may_run_again(self):
        x = leaf(1)
        y = returning(lambda ctx, grad: grad).apply(x)
        backward(y)
        backward(y)
        assert x.grad._array == 2

    def test_a_stale_saved_tensor_is_an_error(self):
        x = leaf(1)
        y = Scale.apply(x)
        x._version_counter.value += 1
        with pytest.raises(RuntimeError, match=r"modified by an inplace.*expected version 0"):
            backward(y)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            y.grad_fn.portable_context()

    def test_materialized_and_undefined_gradients(self):
        TwoOutputs.seen.clear()
        backward(TwoOutputs.apply(leaf(1, 2))[0])
        (_, second) = TwoOutputs.seen[0]
        np.testing.assert_array_equal(second._array, [0, 0])

        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x._array * 2, x._array * 3

        seen = []
        function = returning(lambda ctx, *grads: seen.append(grads[1]), forward)
        backward(function.apply(leaf(1))[0])
        assert seen == [None]

    def test_needs_input_grad_follows_the_graph_task_and_the_thread(self):
        seen, inside, go_on = {}, threading.Event(), threading.Event()

        def rule(ctx, grad):
            first = ctx.needs_input_grad
            if first == (True, False):
                inside.set()
                go_on.wait(5)
            seen[first] = ctx.needs_input_grad
            return grad, grad

        a, b = leaf(1), leaf(2)
        node = returning(rule).apply(a, b).grad_fn
        assert node.ctx.needs_input_grad == (True, True)
        one = np.ones(1, np.float32)
        thread = threading.Thread(target=node.apply, args=(dispatch.cpu, [one], [True, False]))
        thread.start()
        assert inside.wait(5)
        left, right = node.apply(dispatch.cpu, [one], [False, True])
        go_on.set()
        thread.join(5)
        assert seen == {(True, False): (True, False), (False, True): (False, True)}
        assert left is None
        assert right == 1

    def test_needs_input_grad_of_an_outer_ctx(self):
        outer = returning(None).apply(leaf(1), leaf(2)).grad_fn.ctx
        inner = returning(lambda ctx, grad: seen.append(outer.needs_input_grad)).apply(leaf(1))
        seen = []
        backward(inner)
        assert seen == [(True, True)]

    def test_a_ctx_that_outlived_its_graph(self):
        kept = []

        def forward(ctx, x):
            kept.append(ctx)
            y = Tensor(x._array * 2)
            ctx.save_for_backward(x, y)
            return y

        y = returning(None, forward).apply(leaf(1))
        del y
        # A saved output would have to come back with its Node as its history.
        with pytest.raises(RuntimeError, match="graph was destroyed"):
            _ = kept[0].saved_tensors


class TestReturnedGradients:
    @pytest.mark.parametrize(
        ("value", "arguments", "message"),
        [
            ((1.0,), 2, r"incorrect number of gradients \(expected 2, got 1\)"),
            ((None, None, 1.0), 2, r"incorrect number of gradients \(expected 2, got 3\)"),
            (("a",), 1, r"expected Variable or None \(got str\)"),
            ((1.0,), 1, r"expected Variable or None \(got float\)"),
            (([1.0],), 1, r"expected Variable or None \(got list\)"),
        ],
    )
    def test_wrong_returns(self, value, arguments, message):
        y = returning(value).apply(*(leaf(1, 2) for _ in range(arguments)))
        with pytest.raises(RuntimeError, match=message):
            backward(y)

    def test_gradient_for_a_plain_value(self):
        y = returning(lambda ctx, grad: (grad, grad)).apply(leaf(1), 2.0)
        message = "function ReturningBackward returned a gradient different than None at position 2"
        with pytest.raises(RuntimeError, match=message):
            backward(y)

    def test_trailing_nones_and_none_for_all(self):
        x = leaf(1)
        backward(returning(lambda ctx, grad: (grad, None, None)).apply(x))
        assert x.grad._array == 1
        x.grad = None
        backward(returning(None).apply(x))
        assert x.grad is None

    @pytest.mark.parametrize("value", [2.5, np.float32(2.5), np.array(2.5, np.float32)])
    def test_scalars_for_a_scalar_input(self, value):
        x = Tensor(np.array(1, np.float32), requires_grad=True)
        backward(returning(lambda ctx, grad: value).apply(x))
        assert x.grad._array == 2.5
        assert x.grad.dtype == np.float32

    def test_missing_backward_and_both_names(self):
        class NoBackward(Function):
            @staticmethod
            def forward(ctx, x):
                return x._array * 2

        with pytest.raises(NotImplementedError, match=r"NoBackward.*either the backward or vjp"):
            backward(NoBackward.apply(leaf(1)))

        class Both(NoBackward):
            backward = vjp = staticmethod(lambda ctx, grad: grad)

        with pytest.raises(RuntimeError, match="Implementing both 'backward' and 'vjp'"):
            backward(Both.apply(leaf(1)))

        class Vjp(NoBackward):
            vjp = staticmethod(lambda ctx, grad: Tensor(grad._array * 2))

        backward(Vjp.apply(x := leaf(1)))
        assert x.grad._array == 2

    def test_exceptions_keep_their_type(self):
        def fail(ctx, grad):
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            backward(returning(fail).apply(leaf(1)))


class TestMisuse:
    def test_calling_an_instance(self):
        with pytest.warns(DeprecationWarning, match="should not be instantiated"):
            instance = Scale()
        with pytest.raises(RuntimeError, match=r"Legacy autograd function with non-static forward"):
            instance(leaf(1))

    def test_run_on(self):
        class Wrong(Scale):
            run_on = "gpu"

        with pytest.raises(ValueError, match=r"Wrong.run_on is 'gpu'"):
            Wrong.apply(leaf(1))


class TestHigherOrder:
    def test_apply_recorded_keeps_the_history(self):
        seen = []

        def rule(ctx, grad):
            seen.append(is_grad_enabled())
            return Scale.apply(grad, 3.0)

        x, seed = leaf(1), leaf(2)
        node = returning(rule).apply(x).grad_fn
        (gradient,) = node.apply_recorded([seed], [True])
        backward(gradient)
        assert seen == [True]
        assert seed.grad._array == 12

    def test_once_differentiable(self):
        @once_differentiable
        def rule(ctx, grad):
            assert not is_grad_enabled()
            return grad._array * 2

        node = returning(rule).apply(leaf(1)).grad_fn
        (plain,) = node.apply(dispatch.cpu, [np.ones(1, np.float32)], [True])
        assert plain == 2
        (gradient,) = node.apply_recorded([leaf(1)], [True])
        with pytest.raises(RuntimeError, match=r"differentiate twice .* @once_differentiable"):
            backward(gradient)


class TestPortableContext:
    def test_a_rebuilt_ctx_gives_the_same_gradients(self):
        y = Scale.apply(leaf(1, 2, 3), 4.0)
        portable = y.grad_fn.portable_context()
        assert portable.attributes == {"factor": 4.0}
        vector = InputMetadata((3,), np.dtype(np.float32))
        assert portable.description.inputs == (vector, None)
        assert portable.description.outputs == (vector,)
        grad = np.array([1, 2, 3], np.float32)
        here = y.grad_fn.apply(dispatch.cpu, [grad], [True, False])
        there = run_function_backward(Scale, portable.rebuild(Scale), [grad], [True, False])
        np.testing.assert_array_equal(here[0], there[0])
        assert here[1] is there[1] is None

    def test_it_materializes_and_keeps_flags(self):
        def forward(ctx, x):
            ctx.save_for_backward(x, None)
            return x._array * 2, x._array * 3

        seen = []
        function = returning(
            lambda ctx, *grads: seen.append((ctx.saved_tensors, grads[1])), forward
        )
        ctx = function.apply(leaf(1, 2))[0].grad_fn.portable_context().rebuild(function)
        run_function_backward(function, ctx, [np.ones(2, np.float32), None], [True])
        ((saved, nothing), second) = seen[0]
        assert saved.requires_grad
        assert nothing is None
        np.testing.assert_array_equal(second._array, [0, 0])


class TestAgainstTorch:
    def test_messages_and_numbers(self, of_torch):
        def build(base, array):
            class Cube(base):
                @staticmethod
                def forward(ctx, x, k):
                    ctx.save_for_backward(x)
                    ctx.k = k
                    return x * x * x * k if base is not Function else array(x) ** 3 * k, 7

                @staticmethod
                def backward(ctx, grad, nothing):
                    assert nothing is None
                    (x,) = ctx.saved_tensors
                    if base is Function:
                        return 3 * ctx.k * array(x) ** 2 * array(grad), None
                    return 3 * ctx.k * x * x * grad, None

            return Cube

        values = np.array([1.5, -2.0], np.float32)

        def on_torch(torch):
            x = torch.tensor(values, requires_grad=True)
            y = build(torch.autograd.Function, None).apply(x, 2.0)[0]
            y.backward(torch.ones(2))
            return x.grad.numpy(), y.grad_fn.name(), y.output_nr

        mine = Tensor(values.copy(), requires_grad=True)
        y = build(Function, lambda t: t._array).apply(mine, 2.0)[0]
        backward(y)
        for oracle, (grad, name, number) in of_torch(on_torch):
            np.testing.assert_array_equal(mine.grad._array, grad, oracle)
            assert (y.grad_fn.name(), y.output_nr) == (name, number), oracle
