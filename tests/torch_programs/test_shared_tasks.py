"""Branches that one task has recorded are differentiated by one task, as torch begins them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402
from mpgrad.engine.submitter import Submission  # noqa: E402
from mpgrad.parallel import placing  # noqa: E402
from mpgrad.torch import derivative_tasks  # noqa: E402
from tests.torch_programs.test_both_passes import bits, leaves  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.torch]


@pytest.fixture(scope="module", params=["process-1", "process-2"])
def engine(request: pytest.FixtureRequest) -> Iterator[mg.Engine]:
    with mg.Engine("process", cpu_workers=int(request.param[-1])) as engine:
        yield engine


@pytest.fixture(autouse=True)
def three_items_in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        placing.CUTS,
        "tasks",
        lambda name, chunks: [
            range(at, min(at + 3, len(chunks))) for at in range(0, len(chunks), 3)
        ],
    )


def item(x: Any, k: float, w: Any) -> Any:
    return (torch.sin(x * k) * w).sum()


def gradients(outs: list[Any], sources: list[Any]) -> list[Any]:
    torch.stack(outs).square().sum().backward()
    found = bits(*[one.grad for one in sources])
    for one in sources:
        one.grad = None
    return found


def test_a_backward_has_as_many_tasks_as_its_forward(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, *xs = leaves(3, *[(5,)] * 9)
    ks = [0.3 * k for k in range(8)]
    expected = gradients([item(x, k, w) for x, k in zip(xs, ks, strict=True)], [w, *xs])
    submitted = []

    def noted(requests: list[Any], *args: Any) -> Submission:
        submitted.append(len(requests))
        return Submission(requests, *args)

    monkeypatch.setattr(derivative_tasks, "Submission", noted)
    outs = mt.parallel_map(item, xs, ks, shared=(w,))
    assert gradients(outs, [w, *xs]) == expected
    assert sorted(submitted) == [2, 3, 3]


def test_some_branches_of_a_task_alone(engine: mg.Engine) -> None:
    w, *xs = leaves(4, *[(5,)] * 7)
    ks = [0.3 * k for k in range(6)]
    for chosen in ([4], [0, 5], [1, 2, 3]):
        serial = [item(x, k, w) for x, k in zip(xs, ks, strict=True)]
        expected = gradients([serial[at] for at in chosen], [w])
        outs = mt.parallel_map(item, xs, ks, shared=(w,))
        assert gradients([outs[at] for at in chosen], [w]) == expected


def test_a_branch_that_waits_for_another_one_of_its_task(engine: mg.Engine) -> None:
    """The gradient of one comes through the other: torch waits before all have begun."""

    def program(run: Any) -> list[Any]:
        (x,) = leaves(5, (4,))
        first = run(lambda k: (x * k).sin(), [0.2, 0.4, 0.6])
        second = run(lambda one, k: (one * k).cos().sum(), first, [1.0, 2.0, 3.0])
        loss = second[0] * first[2].sum() + second[1] + second[2] * first[0].sum()
        loss.backward()
        return bits(loss, x.grad)

    serial = program(lambda fn, *args: [fn(*one) for one in zip(*args, strict=True)])
    assert program(mt.parallel_map) == serial


def test_an_error_in_one_of_a_task_is_that_of_its_item(engine: mg.Engine) -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, k: int) -> Any:
            ctx.k = k
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            if ctx.k == 4:
                raise ValueError("no gradient")
            return grad, None

    (x,) = leaves(6, (3,))
    outs = mt.parallel_map(lambda k: Fails.apply(x, k).sum(), range(6))
    with pytest.raises(ValueError, match="no gradient") as caught:
        torch.stack(outs).sum().backward()
    assert "item 4" in "".join(caught.value.__notes__)


def test_a_backward_that_fails_before_a_task_is_whole_leaves_nothing(engine: mg.Engine) -> None:
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            raise RuntimeError("in between")

    (x,) = leaves(7, (3,))
    outs = mt.parallel_map(lambda k: (x * k).sum(), [1.0, 2.0, 3.0])
    loss = Raises.apply(outs[0]) + outs[1] + outs[2]
    kept = [weakref.ref(loss)]
    with pytest.raises(RuntimeError, match="in between"):
        loss.backward()
    kept += [weakref.ref(task) for task in derivative_tasks._waiting.tasks.values()]
    del outs, loss
    mt.parallel_map(lambda k: k, [1.0])  # notes that nothing runs any more
    gc.collect()
    assert [one() for one in kept] == [None] * len(kept)
    outs = mt.parallel_map(lambda k: (x * k).sum(), [1.0, 2.0, 3.0])
    torch.stack(outs).sum().backward()
    assert x.grad.tolist() == [6.0] * 3
