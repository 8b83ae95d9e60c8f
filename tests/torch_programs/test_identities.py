"""A tensor that occurs several times in a result is one tensor for the caller, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.torch]


@pytest.fixture(scope="module", params=["local", "process"])
def engine(request: pytest.FixtureRequest) -> Iterator[mg.Engine]:
    with mg.Engine(request.param, cpu_workers=2) as engine:
        yield engine


def one_result(fn: Any) -> Any:
    return mt.parallel_map(fn, [1])[0]


def trained(_: int) -> Any:
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(2)).sum().backward()
    optimizer.step()
    return net, optimizer


def test_a_returned_optimizer_goes_on(engine: mg.Engine) -> None:
    net, optimizer = one_result(trained)
    assert optimizer.param_groups[0]["params"][0] is net.weight
    before = net.weight.detach().clone()
    optimizer.zero_grad()
    net(torch.ones(2)).sum().backward()
    optimizer.step()
    assert not torch.equal(net.weight, before)
    assert set(optimizer.state) == set(net.parameters())
    assert optimizer.state[net.weight]["step"] == 2
    assert list(optimizer.state_dict()["state"]) == [0, 1]


def tied(_: int) -> Any:
    embedding, head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
    head.weight = embedding.weight
    return torch.nn.Sequential(embedding, head)


def test_returned_weights_stay_tied(engine: mg.Engine) -> None:
    for model in (one_result(tied), mt.wait(mt.fork(tied, 1))):
        assert model[0].weight is model[1].weight
        assert len([*model.parameters()]) == 1
        assert type(model[0].weight) is torch.nn.Parameter


def with_grads(_: int) -> Any:
    parameter, leaf = torch.nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True)
    constant, grad = torch.zeros(2), torch.full((2,), 3.0)
    parameter.grad = leaf.grad = constant.grad = grad
    return {parameter: leaf}, [parameter, leaf, leaf, constant], grad


def test_grads_of_what_is_returned(engine: mg.Engine) -> None:
    by_parameter, (parameter, leaf, again, constant), grad = one_result(with_grads)
    assert by_parameter[parameter] is leaf is again
    assert parameter.grad is leaf.grad is constant.grad is grad
    assert grad.tolist() == [3.0, 3.0]


def grads_of_each_other(_: int) -> Any:
    first, second = torch.nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True)
    first.grad, second.grad = second, first
    return first, second


def test_two_that_are_the_grads_of_each_other(engine: mg.Engine) -> None:
    first, second = one_result(grads_of_each_other)
    assert first.grad is second
    assert second.grad is first


def test_a_parameter_beside_a_view_of_it(engine: mg.Engine) -> None:
    def make(_: int) -> Any:
        parameter = torch.nn.Parameter(torch.ones(2))
        return parameter, parameter, parameter.detach()

    parameter, again, _ = one_result(make)
    assert parameter is again
    assert isinstance(parameter, torch.nn.Parameter)
    with torch.no_grad(), pytest.raises(RuntimeError, match="shares its memory"):
        parameter.add_(1)
