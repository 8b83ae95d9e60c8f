"""``torch.optim.swa_utils``: averages by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad as mg
import mpgrad.compat.torch as torch
from mpgrad import nn

swa = torch.optim.swa_utils


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 2.0),
        ({"avg_fn": swa.get_ema_avg_fn(0.75)}, 0.75**2 * 1 + 0.25 * 0.75 * 2 + 0.25 * 3),
        ({"multi_avg_fn": swa.get_ema_multi_avg_fn(0.5)}, 0.25 * 1 + 0.25 * 2 + 0.5 * 3),
    ],
)
def test_parameters_are_averaged_and_buffers_copied(options: Any, expected: float) -> None:
    model = nn.BatchNorm1d(2)
    averaged = swa.AveragedModel(model, **options)
    for value in (1.0, 2.0, 3.0):
        nn.init.constant_(model.weight, value)
        model.running_mean.fill_(value)
        averaged.update_parameters(model)
    assert averaged.module.weight.tolist() == [expected, expected]
    assert averaged.module.running_mean.tolist() == [3.0, 3.0]
    assert averaged.n_averaged.item() == 3
    with pytest.raises(AssertionError, match="Only one of"):
        swa.AveragedModel(model, avg_fn=max, multi_avg_fn=max)


def test_statistics_are_those_of_the_whole_loader() -> None:
    model = nn.Sequential(nn.BatchNorm1d(1)).eval()
    batches = [[mg.tensor([[1.0], [3.0]])], [mg.tensor([[5.0], [9.0]])]]
    swa.update_bn(batches, model)
    assert model[0].running_mean.tolist() == [4.5]
    assert model[0].running_var.tolist() == [5.0]
    assert (model[0].momentum, model.training) == (0.1, False)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("linear", [0.9, 0.5, 0.1, 0.1]), ("cos", [0.9, 0.5, 0.1, 0.1])],
)
def test_learning_rates_are_led_to_the_last_one(strategy: Any, expected: list[float]) -> None:
    optimizer = mg.optim.SGD([mg.ones(1, requires_grad=True)], lr=0.9)
    scheduler = swa.SWALR(optimizer, 0.1, anneal_epochs=2, anneal_strategy=strategy)
    rates = []
    for _ in expected:
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    np.testing.assert_allclose(rates, expected)
