"""Containers change and print as PyTorch's; a softmax over many classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from tests.semantics.paired import compare, seen
from tests.torch_outcomes import Of


def _text(value: Any) -> str:
    return str(value).replace("mpgrad.", "torch.")


def _error(function: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - both libraries' are compared
        function()
    return f"{type(caught.value).__name__}: {_text(caught.value)}"


def in_a_row(T: Any) -> Any:
    nn = T.nn

    class Own(nn.Sequential):  # type: ignore[misc]
        """Its parts are of its class."""

    row = Own(nn.Linear(1, 2), nn.ReLU())
    told = [row.append(nn.Linear(2, 1)) is row, row.insert(1, nn.Tanh()) is row]
    row.extend([nn.GELU()])
    told += [_text(row), _text(row[1:3]), _text(row.pop(0)), _text(row.pop(-1)), _text(row)]
    told += [_text(row + nn.Sequential(nn.Tanh())), _text(2 * row), _text(row * 2)]
    row += nn.Sequential(nn.SiLU())
    row *= 2
    del row[0]
    del row[1:3]
    row[0] = nn.Sigmoid()
    told += [_text(row), len(row), list(row.state_dict()), "0" in dir(row)]
    named = nn.Sequential({"a": nn.Tanh(), "b": nn.ReLU()}) if T is mg else _named(T)
    del named[0]
    refused = [
        _error(lambda: row[10]),
        _error(lambda: row.insert(9, nn.ReLU())),
        _error(lambda: row * 0),
        _error(lambda: row * 1.5),
        _error(lambda: row.__add__([nn.ReLU()]))[:60],
        _error(lambda: row.insert(0, 3))[:40],
    ]
    return [*told, _text(named), refused]


def _named(T: Any) -> Any:
    from collections import OrderedDict

    return T.nn.Sequential(OrderedDict([("a", T.nn.Tanh()), ("b", T.nn.ReLU())]))


def in_a_list(T: Any) -> Any:
    nn = T.nn
    row = nn.ModuleList([nn.Linear(1, 1) for _ in range(3)] + [nn.ReLU()] * 2)
    told = [_text(row)]
    row += [nn.GELU()]
    row.insert(0, nn.Tanh())
    row[1] = nn.SiLU()
    del row[2:4]
    told += [_text(row), _text(row.pop(0)), _text(row[:2]), _text(row[-1]), len(row)]
    told += [
        [type(m).__name__ for m in reversed(row)],
        _text(row + nn.ModuleList([nn.Tanh()])),
        row[0] in row,
    ]
    del row[-1]
    deep = nn.ModuleList([nn.Sequential(nn.Linear(1, 1), nn.ReLU()) for _ in range(2)])
    return [*told, _text(row), _text(deep), _text(nn.ModuleList()), _error(lambda: row[7]),
            _error(lambda: row.extend(3)), _error(lambda: row.__delitem__(9))]  # fmt: skip


def parameters(T: Any) -> Any:
    row = T.nn.ParameterList([T.ones(2), T.nn.Parameter(T.zeros(1, 2))])
    row += [T.ones(3)]
    row.append("text")
    return [_text(row), _text(T.nn.ParameterList()), len(row)]


def submodules(T: Any) -> Any:
    net = T.nn.Sequential(T.nn.Linear(1, 1), T.nn.Sequential(T.nn.ReLU()))
    net.set_submodule("1.0", T.nn.Tanh())
    told = [_text(net)]
    for name, module in (("", T.nn.ReLU()), ("9.0", T.nn.ReLU()), ("1.0", 3)):
        told.append(_error(lambda name=name, module=module: net.set_submodule(name, module))[:60])
    told.append(_error(lambda: net.to(T.int64)))
    return [*told, _error(lambda: net.set_submodule("2", T.nn.ReLU(), strict=True))]


PROGRAMS = (in_a_row, in_a_list, parameters, submodules)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_does_what_pytorch_does(program: Callable[[Any], Any], of_torch: Of) -> None:
    here = program(mg)
    for oracle, there in of_torch(program):
        assert here == there, oracle


def many_classes(T: Any) -> Any:
    layer = T.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4, 10], div_value=2.0, head_bias=True).double()
    with T.no_grad():
        for at, parameter in enumerate(layer.parameters()):
            values = np.cos(np.arange(parameter.numel()) * (at + 1.0))
            parameter.copy_(T.tensor(values).reshape(parameter.shape))
    x = T.tensor(np.sin(np.arange(48.0)).reshape(6, 8)).requires_grad_()
    y = T.tensor([0, 19, 5, 3, 12, 4])
    output, loss = layer(x, y)
    loss.backward()
    values = [output, loss, x.grad, *(p.grad for p in layer.parameters()), layer.log_prob(x)]
    refused = [
        _error(lambda args=args: layer(*args))
        for args in ((x, T.tensor([20] * 6)), (x, y[:2]), (x[0], y), (x, y[None]), (x, y[0]))
    ]
    refused += [
        _error(lambda cutoffs=cutoffs: T.nn.AdaptiveLogSoftmaxWithLoss(8, 20, cutoffs))
        for cutoffs in ([], [0], [3, 3], [5, 20], [2.5])
    ]
    single = layer(x[0], y[0]).output
    return [refused, layer.predict(x).tolist(), seen([*values, single], exact=False)]


def test_a_softmax_over_many_classes(of_torch: Of) -> None:
    *here, found = many_classes(mg)
    for oracle, (*there, theirs) in of_torch(many_classes):
        assert here == there, oracle
        compare(found, theirs, 1e-10, 1e-12, oracle)


def test_a_layer_without_inputs_is_made() -> None:
    with pytest.warns(UserWarning, match="zero-element tensors"):
        layer = mg.nn.Linear(0, 3)
    assert layer(mg.ones(2, 0)).shape == (2, 3)
