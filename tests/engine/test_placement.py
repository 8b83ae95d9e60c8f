"""Placing comes first: what has to stay in the client is known to the plan and to ``auto``, once,
and is said where nobody has asked for it."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd.frozen_graphs import costs
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.engine import placement
from mpgrad.engine.choice import Experience, predict, too_small
from mpgrad.engine.placement import place
from mpgrad.errors import PerformanceWarning
from mpgrad.recording.tensors.tensor import gradient_edge
from mpgrad.scheduler.cost_model import CostModel
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.tuning import MESSAGE_US


class Camera:
    """Something of which a copy may be something else."""

    scale = 2.0

    def __getstate__(self) -> Any:
        return {}


class Render(mg.Function):
    """Reads what forward got through ctx."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, camera: Any) -> Any:
        ctx.camera = camera
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * ctx.camera.scale, None


class Other(Render):
    """Another class, another reason."""


class Pure(mg.Function):
    """Can travel."""

    forward = staticmethod(lambda ctx, x: x * 2)
    backward = staticmethod(lambda ctx, grad: grad * 2)


class Saves(mg.Function):
    """Saves its input."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return 2 * ctx.saved_tensors[0] * grad


@pytest.fixture(autouse=True)
def nothing_said_or_learned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_said", OrderedDict())
    monkeypatch.setattr(costs, "model", CostModel())


def loss_of(count: int, function: Any = Render, others: int = 0) -> mg.Tensor:
    x, camera = mg.ones(4, requires_grad=True), Camera()
    parts = [function.apply(x, camera).sum() for _ in range(count)]
    return mg.stack(parts + [Pure.apply(x).sum() for _ in range(others)]).sum()


def frozen(loss: mg.Tensor) -> FrozenGraph:
    return freeze([gradient_edge(loss)], [None], keep_graph=True, cost=costs.estimate)


def test_functions_of_the_client_are_not_counted_as_parallel() -> None:
    """Each was never measured, and so counts as expensive."""
    graph = frozen(loss_of(16))
    assert too_small(graph, 2, MESSAGE_US) is None
    for found, mode in ((graph, "process"), (place(graph).frozen, "local")):
        predicted = predict(plan(found.spec, workers=8), 8, MESSAGE_US)
        assert Experience().choose(predicted, has_workers=False).mode == mode
    explanation = mg.Engine("auto", cpu_workers=8).explain(loss_of(16))
    assert explanation.mode == "local"
    assert {node.where for node in explanation.nodes} == {"client"}


def test_one_of_many_in_the_client_does_not_keep_the_others() -> None:
    explanation = mg.Engine("auto", cpu_workers=2).explain(loss_of(1, others=15))
    assert explanation.mode == "process"
    assert [node.where for node in explanation.nodes if node.name == "RenderBackward"] == ["client"]
    assert {node.where for node in explanation.nodes if node.name == "PureBackward"} == {"worker"}


def test_the_next_step_finds_the_tables_of_a_placed_graph() -> None:
    first, second = place(frozen(loss_of(3))), place(frozen(loss_of(3)))
    assert first.frozen.spec is second.frozen.spec
    assert first.frozen.remembered is not None
    assert place(frozen(loss_of(2, others=1))).frozen.spec is not first.frozen.spec


def serial_warnings(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(one.message) for one in caught if one.category is PerformanceWarning]


@pytest.mark.process
def test_functions_that_stay_unasked_are_named_once() -> None:
    with warnings.catch_warnings(record=True) as caught, mg.Engine("process", cpu_workers=1):
        warnings.simplefilter("always")
        for _ in range(3):
            loss_of(2, others=1).backward()
        loss_of(1, Other).backward()
    first, second = serial_warnings(caught)
    assert first == (
        "Render runs in this process: `ctx.camera` is a Camera, which cannot be copied faithfully. "
        'Set what it is made of on ctx, or set run_on = "client".'
    )
    assert second.startswith("Other runs in this process: `ctx.camera` is a")
    (filename,) = {one.filename for one in caught if one.category is PerformanceWarning}
    assert filename == __file__


def test_auto_names_them_though_it_runs_all_of_them_here() -> None:
    with warnings.catch_warnings(record=True) as caught, mg.Engine("auto", cpu_workers=2):
        warnings.simplefilter("always")
        loss_of(8).backward()
    (text,) = serial_warnings(caught)
    assert text.startswith("Render runs in this process: `ctx.camera`")


def test_several_reasons_make_one_line() -> None:
    with warnings.catch_warnings(record=True) as caught, mg.Engine("auto", cpu_workers=2):
        warnings.simplefilter("always")
        (loss_of(4) + loss_of(4, Other)).backward()
        (loss_of(4) + loss_of(4, Other)).backward()
    (text,) = serial_warnings(caught)
    assert text.endswith("[engine.explain(loss) shows 1 more]")


def test_what_the_user_has_asked_for_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Render, "run_on", "client")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with mg.Engine("auto", cpu_workers=2):
            loss_of(8).backward()
        monkeypatch.setattr(Render, "run_on", None)
        with mg.Engine("local"):
            loss_of(8).backward()
    assert serial_warnings(caught) == []


@pytest.mark.process
def test_classes_are_looked_at_once_even_where_saved_tensors_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[Any] = []
    decide = placement.decide

    def counting(function: Any, held: Any) -> Any:
        looked.append(function)
        return decide(function, held)

    monkeypatch.setattr(placement, "decide", counting)
    x = mg.ones(4, requires_grad=True)
    y = x.exp()
    with mg.Engine("process", cpu_workers=1):
        y.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            Pure.apply(y).sum().backward()
    assert looked == [Pure]


class Reshaped(mg.Function):
    """Keeps on ctx what most Functions keep of an input: its shape, its dtype, its device."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> mg.Tensor:
        ctx.shape, ctx.dtype, ctx.device = x.shape, x.dtype, x.device
        return x.reshape(-1) * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
        two = mg.full(ctx.shape, 2, dtype=ctx.dtype)
        return grad.reshape(ctx.shape) * two


class MadeThere(mg.Function):
    """Makes a number in backward, whose dtype is the default."""

    forward = staticmethod(lambda ctx, x: x * 2)
    backward = staticmethod(lambda ctx, grad: grad * mg.tensor(1 / 3).double() * 6)


@pytest.mark.process
def test_shapes_and_dtypes_on_ctx_go_to_workers() -> None:
    with mg.Engine("process", cpu_workers=1) as engine:
        x = mg.ones(2, 3, requires_grad=True)
        loss = Reshaped.apply(x).sum()
        assert {n.where for n in engine.explain(loss).nodes if "Reshaped" in n.name} == {"worker"}
        loss.backward()
    assert x.grad.tolist() == [[2, 2, 2]] * 2


@pytest.mark.process
def test_another_default_dtype_holds_in_functions() -> None:
    mg.set_default_dtype(mg.float64)
    try:
        with mg.Engine("process", cpu_workers=1) as engine:
            x = mg.ones(3, requires_grad=True)
            loss = MadeThere.apply(x).sum()
            assert {n.where for n in engine.explain(loss).nodes if "Made" in n.name} == {"worker"}
            loss.backward()
            mg.set_default_dtype(mg.float32)
            y = mg.ones(3, dtype=mg.float64, requires_grad=True)
            MadeThere.apply(y).sum().backward()
    finally:
        mg.set_default_dtype(mg.float32)
    assert x.grad.dtype == mg.float64
    assert x.grad.tolist() == [2.0] * 3
    assert y.grad.tolist() != [2.0] * 3  # a third in float32


def test_a_saved_tensor_travels_though_the_program_has_never_named_its_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = frozen(Saves.apply(mg.ones(4, requires_grad=True)).sum())
    monkeypatch.delitem(vars(mg), "Tensor", raising=False)
    placed = place(graph)
    assert (list(placed.kept), len(placed.code)) == ([], 1)


class Inner(mg.Function):
    """Runs backwards of its own in the calling process."""

    run_on = "client"
    forward = staticmethod(lambda ctx, x: x.detach() * 2)

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        total: Any = 0
        for k in range(5):
            with mg.enable_grad():
                x = mg.ones(4, requires_grad=True)
                (found,) = mg.autograd.grad((x * x * k).sum(), x)
            total = total + found
        return grad * total


@pytest.mark.process
def test_small_graphs_inside_of_a_backward_run_where_they_are() -> None:
    with mg.Engine("process", cpu_workers=2) as engine:
        for count in (1, 2):
            x = mg.ones(4, requires_grad=True)
            Inner.apply(x).sum().backward()
            assert x.grad is not None
            assert x.grad.tolist() == [20.0] * 4
            found = engine.statistics()
            assert (found.backwards_process, found.backwards_local) == (count, 5 * count)
        x = mg.ones(4, requires_grad=True)
        (x * x * 1).sum().backward()  # the same tables are no inner graph here
        assert engine.statistics().backwards_process == 3
