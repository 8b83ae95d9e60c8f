"""State that user code changes while a backward runs, or where one looks for it last: the client's
bits, or an error that says why."""

from __future__ import annotations

import decimal
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mpgrad as mg

pytestmark = pytest.mark.process

SCALE = 2.0


class Counts(mg.Function):
    """Changes lists and dictionaries on its ctx, which nobody else holds."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        ctx.items, ctx.table = [1], {"n": [np.ones(2)], "m": 1}
        return x.detach() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        factor = 100 * len(ctx.items) + 10 * len(ctx.table["n"]) + ctx.table["m"]
        ctx.items.append(len(ctx.items))
        ctx.table["n"].append(np.zeros(3))
        ctx.table["m"] += 1
        return grad * factor


class Scales(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.detach() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * SCALE


class Divides(Scales):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * float(np.getbufsize())


class Warns(Scales):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        try:
            warnings.warn("odd", stacklevel=1)
        except UserWarning:
            return grad * 3
        return grad * 5


class Exponential(Scales):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * math.exp(1.0)


def leaf() -> mg.Tensor:
    return mg.tensor([1.0], requires_grad=True)


@pytest.fixture
def restored() -> Iterator[None]:
    yield
    global SCALE
    SCALE = 2.0
    np.setbufsize(8192)
    decimal.DefaultContext.prec = 28


def tasks_of_workers(engine: mg.Engine) -> int:
    tasks = engine.statistics().tasks
    return sum(tasks.values()) - tasks.get("client", 0)


def test_lists_on_a_ctx_that_backward_changes(engine: mg.Engine) -> None:
    def gradients() -> list[float]:
        x, found = leaf(), []
        y = Counts.apply(x)
        for _ in range(3):
            x.grad = None
            y.sum().backward(retain_graph=True)
            assert x.grad is not None
            found.append(x.grad.item())
        y.grad_fn.table["n"][-1][0] = 7.0  # what is there is the caller's, and writable
        return found

    before = tasks_of_workers(engine)
    found = gradients()
    assert tasks_of_workers(engine) > before
    with mg.Engine("local"):
        assert gradients() == found == [111.0, 222.0, 333.0]


def change_scale(grad: mg.Tensor) -> None:
    global SCALE
    SCALE += 1


def change_template(grad: mg.Tensor) -> None:
    decimal.DefaultContext.prec = 30


def change_buffers(grad: mg.Tensor) -> None:
    np.setbufsize(4096)


@pytest.mark.parametrize(
    ("function", "hook", "words"),
    [
        (Scales, change_scale, "has changed `SCALE`, which Scales reads behind it"),
        (Divides, change_buffers, "changed the buffer size of this process, which Divides reads"),
        (Divides, change_template, "changed decimal.DefaultContext, which Divides reads behind it"),
    ],
)
def test_a_hook_that_changes_what_a_later_function_reads(
    engine: mg.Engine,
    restored: None,
    function: type[mg.Function],
    hook: Callable[[mg.Tensor], None],
    words: str,
) -> None:
    x = leaf()
    y = function.apply(x)
    y.register_hook(hook)
    with pytest.raises(RuntimeError) as caught:
        y.sum().backward()
    assert words in str(caught.value)
    assert f'set run_on = "client" on {function.__name__}' in str(caught.value)
    assert x.grad is None


def test_a_hook_that_changes_it_behind_the_function(engine: mg.Engine, restored: None) -> None:
    x = leaf()
    x.register_hook(change_scale)
    Scales.apply(x).sum().backward()
    assert (x.grad.item(), SCALE) == (2.0, 3.0)
    x.grad = None
    Scales.apply(x).sum().backward()
    assert x.grad.item() == 3.0


def test_filters_that_make_errors_of_warnings(engine: mg.Engine) -> None:
    for action, expected in (("error", 3.0), ("ignore", 5.0)):
        with warnings.catch_warnings():
            warnings.filterwarnings(action, "odd", UserWarning)  # type: ignore[arg-type]
            x = leaf()
            Warns.apply(x).sum().backward()
            assert x.grad.item() == expected


def test_a_function_of_python_that_another_one_has_replaced(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = leaf()
    Exponential.apply(x).sum().backward()
    monkeypatch.setattr(math, "exp", math.expm1)
    with pytest.warns(
        mg.errors.PerformanceWarning, match=r"reads math.exp, which has been replaced by expm1"
    ):
        Exponential.apply(x).sum().backward()


class Labelled(mg.Tensor):
    """A kind of tensor that backward asks for."""


class AsksForIt(Scales):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, saved: mg.Tensor) -> Any:
        ctx.save_for_backward(saved)
        return x.detach() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        (saved,) = ctx.saved_tensors
        factor = 2.0 * isinstance(saved, Labelled) + getattr(saved, "weight", 0.0)
        return grad * (1.0 + factor), None


class AsksForGrad(AsksForIt):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * (1.0 if ctx.saved_tensors[0].grad is None else 2.0), None


def test_saved_tensors_that_are_more_than_their_numbers(engine: mg.Engine) -> None:
    plain, labelled, weighted = mg.ones(1), Labelled(np.ones(1, np.float32)), mg.ones(1)
    weighted.weight = 4.0  # type: ignore[attr-defined]
    for saved, expected in ((plain, 1.0), (labelled, 3.0), (weighted, 5.0)):
        x = leaf()
        loss = AsksForIt.apply(x, saved).sum()
        where = [at.where for at in engine.explain(loss).nodes if at.name == "AsksForItBackward"]
        assert where == ["worker" if saved is plain else "client"]
        loss.backward()
        assert x.grad is not None
        assert x.grad.item() == expected


def test_a_program_that_never_names_tensor(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package has the name when somebody has asked for it."""
    monkeypatch.delitem(vars(mg), "Tensor", raising=False)
    nodes = engine.explain(AsksForIt.apply(leaf(), mg.ones(1)).sum()).nodes
    assert [at.where for at in nodes if at.name == "AsksForItBackward"] == ["worker"]


def test_the_grad_of_a_saved_tensor(engine: mg.Engine) -> None:
    x = leaf()
    with pytest.warns(
        mg.errors.PerformanceWarning, match=r"the \.grad of a tensor of the calling process is read"
    ):
        AsksForGrad.apply(x, x).sum().backward()
    assert x.grad is not None
    assert x.grad.item() == 1.0


class Notes(Scales):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * float(np.isinf(np.float64(1) / np.float64(0)) + len(str(np.array([0.5]))))


class Prints(Notes):
    """Another class, because a reason is told once."""


def test_callbacks_of_numpy(engine: mg.Engine) -> None:
    noted: list[str] = []
    x = leaf()
    with (
        np.errstate(divide="call", call=lambda kind, flag: noted.append(kind)),
        pytest.warns(mg.errors.PerformanceWarning, match=r"seterrcall\) was set in this process"),
    ):
        Notes.apply(x).sum().backward()
    assert noted == ["divide by zero"]
    with (
        np.errstate(divide="ignore"),
        np.printoptions(formatter={"float_kind": lambda value: "a word"}),
        pytest.warns(mg.errors.PerformanceWarning, match=r"that NumPy prints by"),
    ):
        Prints.apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.item() == (1.0 + len("[0.5]")) + (1.0 + len("[a word]"))


class PrintsTensors(Scales):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * float(len(str(mg.tensor(1 / 3))))


def test_the_print_options_of_tensors(engine: mg.Engine) -> None:
    before = tasks_of_workers(engine)
    try:
        for precision in (2, 6):
            mg.set_printoptions(precision=precision)
            x = leaf()
            PrintsTensors.apply(x).sum().backward()
            assert x.grad is not None
            assert x.grad.item() == len("tensor(0.)") + precision
    finally:
        mg.set_printoptions(profile="default")
    assert tasks_of_workers(engine) > before


class PrintsPolynomials(Scales):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * float(len(str(np.polynomial.Polynomial([1, 2, 3]))))


def test_how_polynomials_are_printed(engine: mg.Engine) -> None:
    np.polynomial.set_default_printstyle("ascii")
    try:
        x = leaf()
        with pytest.warns(mg.errors.PerformanceWarning, match=r"set_default_printstyle was set"):
            PrintsPolynomials.apply(x).sum().backward()
        assert x.grad is not None
        assert x.grad.item() == len(str(np.polynomial.Polynomial([1, 2, 3])))
    finally:
        np.polynomial.set_default_printstyle("unicode")


class ChangesTensors(Scales):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, held: Any) -> Any:
        ctx.held = held
        return x.detach() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        ctx.held[:] = 1.0
        return grad * 2, None


@pytest.mark.parametrize("held", [mg.zeros(4), np.zeros(4), mg.zeros(4)[::2], np.zeros(4)[::2]])
def test_arrays_on_a_ctx_that_backward_changes(engine: mg.Engine, held: Any) -> None:
    """A change in a worker would be lost."""
    x, before = leaf(), held.tolist()
    function = type("Changes", (ChangesTensors,), {})  # once it has raised, it stays in the client
    with pytest.warns(mg.errors.PerformanceWarning, match="read-only|changes an array"):
        function.apply(x, held).sum().backward()
    assert x.grad is not None
    assert held.tolist() != before


class RecordsInBackward(Scales):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        with mg.enable_grad():
            x = mg.ones(1, requires_grad=True)
            (inner,) = mg.autograd.grad((x * x).sum(), x)
        return grad * inner


def test_saved_tensor_hooks_in_force_around_a_backward(engine: mg.Engine) -> None:
    """They pack what a Function records in its backward, too."""
    x = leaf()
    loss = RecordsInBackward.apply(x).sum()
    with mg.autograd.graph.saved_tensors_hooks(lambda saved: saved * 2, lambda packed: packed):
        loss.backward(retain_graph=True)
    assert x.grad is not None
    assert x.grad.item() == 4.0
    x.grad = None
    loss.backward()
    assert x.grad is not None
    assert x.grad.item() == 2.0


class ReadsDecimals(Scales):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * float(decimal.Context().prec)


def test_the_template_of_decimal_contexts(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decimal.DefaultContext, "prec", 33)
    x = leaf()
    with pytest.warns(mg.errors.PerformanceWarning, match=r"decimal\.DefaultContext was set"):
        ReadsDecimals.apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.item() == 33.0
