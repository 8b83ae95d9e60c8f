"""Group L: anomaly mode: which Node failed or gave NaN, and where forward recorded it."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from typing import Any

import pytest

import mpgrad as mg
from tests.semantics.paired import error_of, leaf, paired, row


def nan_function(lib: Any, name: str = "GivesNaN") -> Any:
    """A Function whose backward (on a worker, in mpgrad) gives NaN."""

    def forward(ctx: Any, x: Any) -> Any:
        return x.detach() * 2

    def backward(ctx: Any, grad: Any) -> Any:
        return grad * float("nan")

    base = lib.autograd.Function
    rules = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(base)(name, (base,), {"run_on": "worker", **rules}).apply


def failing_function(lib: Any) -> Any:
    class Fails(lib.autograd.Function):  # type: ignore[name-defined, misc]
        run_on = "worker"

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.detach() * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            raise LookupError("in backward")

    return Fails.apply


class Anomalies:
    """``with Anomalies(lib) as found``: what was warned of, in words that both libraries share."""

    def __init__(self, lib: Any, *, check_nan: bool = True) -> None:
        self._catch = warnings.catch_warnings(record=True)
        self._mode = lambda: lib.autograd.set_detect_anomaly(True, check_nan=check_nan)
        self.texts: list[str] = []

    def __enter__(self) -> Anomalies:
        self._caught = self._catch.__enter__()
        warnings.simplefilter("always")
        self._set = self._mode()
        self._set.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._set.__exit__(*exc)
        self._catch.__exit__(*exc)
        assert {w.category for w in self._caught or ()} <= {UserWarning}
        self.texts = [str(w.message) for w in self._caught or ()]

    @property
    def said(self) -> list[list[str]]:
        """Of each warning its sentences without numbers in names, and the user's lines in it."""
        return [[re.sub(r"\d|torch::autograd::", "", first_line(t)), *marks(t)] for t in self.texts]


def first_line(text: str) -> str:
    return text.strip().splitlines()[0].partition(" (Triggered")[0]


def marks(text: str) -> list[str]:
    """The comments ``# here: ...`` in the lines that a traceback shows."""
    return re.findall(r"# here: (\w+)", text)


@paired("L4")
def test_nan_is_traced_to_its_forward_call(lib: Any) -> Any:
    gives_nan = nan_function(lib)
    x = leaf(lib, 3)
    with Anomalies(lib) as found:
        y = x * 3  # here: before
        z = gives_nan(y)  # here: culprit
        total = (z * 2).sum()  # here: behind
        error = error_of(
            total.backward, "Function 'GivesNaNBackward' returned nan values in its 0th"
        )
    return error, found.said, x.grad


@paired("L4")
def test_nan_of_an_operator(lib: Any) -> Any:
    x, w = leaf(lib, 3), lib.tensor([1.0, float("nan"), 2.0], dtype=lib.float64)
    with Anomalies(lib) as found:
        y = x * w  # here: culprit
        total = y.sum()
        error = error_of(
            total.backward, "Function 'MulBackward0", "returned nan values in its 0th output"
        )
    return error, found.said, x.grad


@paired("L4")
def test_the_output_that_is_nan_is_numbered(lib: Any) -> Any:
    class Second(lib.autograd.Function):  # type: ignore[name-defined, misc]
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            return x.detach() * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad, grad * float("nan")

    x, y = leaf(lib, 3), leaf(lib, 3, seed=1)
    with Anomalies(lib):
        return error_of(Second.apply(x, y).sum().backward, "returned nan values in its 1th output")


@paired("L4")
def test_without_the_mode_nan_passes(lib: Any) -> Any:
    x = leaf(lib, 3)
    nan_function(lib)(x).sum().backward()
    with Anomalies(lib, check_nan=False) as found:
        y = leaf(lib, 3)
        nan_function(lib)(y).sum().backward()
    return x.grad, y.grad, found.said


@paired("L4")
def test_an_error_is_traced_to_its_forward_call(lib: Any) -> Any:
    fails = failing_function(lib)
    with Anomalies(lib, check_nan=False) as found:
        y = fails(leaf(lib, 3).exp())  # here: culprit
        error = error_of((y * 3).sum().backward, "in backward")
    return error, found.said


@paired("L4")
def test_the_right_one_of_many_nodes_in_a_chain(lib: Any) -> Any:
    """In process mode they share a task: the worker says which of its Nodes it was."""
    nan = lib.tensor(float("nan"), dtype=lib.float64)
    x = leaf(lib, 3)
    with Anomalies(lib) as found:
        h = x
        for _ in range(5):
            h = h * 1.5
        h = h * nan  # here: culprit
        for _ in range(5):
            h = h + 1
        error_of(h.sum().backward, "returned nan values")
    return found.said


@paired("L4")
def test_forward_outside_of_the_mode(lib: Any) -> Any:
    y = failing_function(lib)(leaf(lib, 3))
    with Anomalies(lib) as found:
        error = error_of(y.sum().backward, "in backward")
    return error, found.said


@paired("L4")
def test_forward_inside_and_backward_outside(lib: Any) -> Any:
    with Anomalies(lib):
        y = failing_function(lib)(leaf(lib, 3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        error = error_of(y.sum().backward, "in backward")
    return error, [str(w.message) for w in caught], list(y.grad_fn.metadata)


@paired("L4")
def test_a_hook_that_fails_is_its_nodes_failure(lib: Any) -> Any:
    def hook(_: Any) -> None:
        raise LookupError("in a hook")

    with Anomalies(lib) as found:
        y = leaf(lib, 3) * 2  # here: hooked
        y.register_hook(hook)
        error = error_of(y.exp().sum().backward, "in a hook")
    return error, found.said


@paired("L4")
def test_a_post_hook_may_not_give_nan(lib: Any) -> Any:
    x = leaf(lib, 3)
    with Anomalies(lib) as found:
        y = x * 2  # here: hooked
        y.grad_fn.register_hook(lambda inputs, _: (inputs[0] * float("nan"), *inputs[1:]))
        error = error_of(y.exp().sum().backward, "Function 'MulBackward0", "0th output")
    return error, found.said


@paired("L4")
def test_nan_in_an_integer_path_or_an_undefined_gradient_is_none(lib: Any) -> Any:
    class GivesNone(lib.autograd.Function):  # type: ignore[name-defined, misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.detach() * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return None

    x = leaf(lib, 3)
    with Anomalies(lib) as found:
        (GivesNone.apply(x).sum() + x.sum()).backward()
    return x.grad, found.said


@paired("L4")
def test_the_first_nan_in_the_serial_order(lib: Any) -> Any:
    x = leaf(lib, 3)
    total = x.sum()
    with Anomalies(lib) as found:
        for number in range(6):
            total = total + nan_function(lib, f"Branch{'abcdef'[number]}")(x).sum()
        error = error_of(total.backward)
    return str(error), found.said


@paired("L4")
def test_an_inner_backward(lib: Any) -> Any:
    gives_nan = nan_function(lib)

    def hook(_: Any) -> None:
        with lib.enable_grad():
            z = gives_nan(leaf(lib, 2))  # here: inner
            total = z.sum()
        total.backward()

    with Anomalies(lib) as found:
        y = leaf(lib, 3) * 2  # here: outer
        y.register_hook(hook)
        error = error_of(y.sum().backward, "nan values")
    return error, found.said


@paired("L5")
def test_detect_anomaly_warns_that_it_is_slow(lib: Any) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with lib.autograd.detect_anomaly():
            inside = lib.is_anomaly_enabled(), lib.is_anomaly_check_nan_enabled()
        with lib.autograd.detect_anomaly(check_nan=False):
            lax = lib.is_anomaly_enabled(), lib.is_anomaly_check_nan_enabled()
        with lib.autograd.set_detect_anomaly(True):
            pass
    outside = lib.is_anomaly_enabled(), lib.is_anomaly_check_nan_enabled()
    assert [w.filename for w in caught] == [__file__] * 2
    return inside, lax, outside, [(str(w.message), w.category.__name__) for w in caught]


@paired("L4")
def test_set_detect_anomaly_acts_at_once(lib: Any) -> Any:
    seen = []
    try:
        lib.autograd.set_detect_anomaly(True)
        seen.append(lib.is_anomaly_enabled())
        with lib.autograd.set_detect_anomaly(False):
            seen.append(lib.is_anomaly_enabled())
        seen.append(lib.is_anomaly_enabled())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            error = error_of(nan_function(lib)(leaf(lib, 2)).sum().backward, "nan values")
    finally:
        lib.autograd.set_detect_anomaly(False)
    return seen, error, lib.is_anomaly_enabled()


@paired("L6")
def test_metadata_holds_stack_and_parent(lib: Any) -> Any:
    x = leaf(lib, 3)
    with Anomalies(lib):
        y = (x * x).sum()  # here: forward
        (g,) = lib.autograd.grad(y, x, create_graph=True)  # here: derived
        first = y.grad_fn.metadata
        nodes, parents = [g.grad_fn], []
        while nodes:
            node = nodes.pop()
            parents.append(node.metadata.get("parent_"))
            nodes += [n for n, _ in node.next_functions if n is not None]
    plain = (x * x).sum().grad_fn.metadata
    assert isinstance(first["traceback_"], list)
    return marks("".join(first["traceback_"])), "parent_" in first, plain, any(parents)


@paired("L6")
def test_a_double_backward_names_the_parents_forward(lib: Any) -> Any:
    gives_nan = nan_function(lib)

    class Outer(lib.autograd.Function):  # type: ignore[name-defined, misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return gives_nan(grad)  # here: inside

    x, seed = leaf(lib, 2), leaf(lib, 2, seed=1)
    with Anomalies(lib) as found:
        y = Outer.apply(x * 3)  # here: forward
        (g,) = lib.autograd.grad(y, x, seed, create_graph=True)  # here: derived
        error = error_of(lambda: lib.autograd.grad(g.sum(), seed), "GivesNaNBackward", "nan values")
    return error, found.said


# mpgrad only: the names of derived Nodes differ.
@paired("L6", torch=False)
def test_a_double_backward_of_operators_names_the_parents_forward(lib: Any) -> Any:
    x = leaf(lib, 2)
    with Anomalies(lib) as found:
        y = (x.exp() * 2).sum()  # here: forward
        (g,) = lib.autograd.grad(y, x, create_graph=True)  # here: derived
        seed = lib.tensor([float("nan"), 1.0], dtype=lib.float64)
        error_of(lambda: lib.autograd.grad(g, x, seed), "nan values")
    first, second = found.said
    assert first[1:] == ["derived"]
    assert second[1:] == ["forward"]
    return found.said


@row("L4")
def test_the_mode_is_off_in_the_beginning_and_costs_one_look() -> None:
    assert not mg.is_anomaly_enabled()
    assert (leaf(mg, 2) * 2).grad_fn._metadata is None


@row("L4")
@pytest.mark.process
def test_a_worker_says_which_node_it_was(process_engine: mg.Engine) -> None:
    before = process_engine.statistics().tasks.get("client", 0)
    with Anomalies(mg) as found:
        y = nan_function(mg)(leaf(mg, 3))  # here: culprit
        error_of(y.sum().backward, "nan values")
    assert marks(found.texts[0]) == ["culprit"]
    assert process_engine.statistics().tasks.get("client", 0) == before


@paired("L4")
def test_where_warnings_are_errors_the_explanation_goes_to_stderr(lib: Any) -> Any:
    captured = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mode = lib.autograd.detect_anomaly()
    with warnings.catch_warnings(), mode:
        warnings.simplefilter("error")
        shifted = leaf(lib, 3) + 1
        squared = shifted**2
        shifted += 1
        with contextlib.redirect_stderr(captured):
            error = error_of(squared.sum().backward, "modified by an inplace operation")
    return error, "Error detected in PowBackward0" in captured.getvalue()
