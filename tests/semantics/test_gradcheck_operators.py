"""Q1, Q2: every operator passes gradcheck and gradgradcheck; its bits in workers are those of here
(``tests/process/test_operators.py``)."""

from __future__ import annotations

from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd.gradcheck import gradcheck, gradgradcheck
from tests.ops.cases import CASES, Case
from tests.ops.layer_cases import ONCE_IN_PYTORCH
from tests.ops.test_operators import MPGRAD
from tests.semantics.paired import row

#: Its gradient is another thing than the derivative: PyTorch defines it so.
NO_DERIVATIVE = "embedding by frequency"


@row("Q1", "Q2")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_first_and_second_derivatives_are_right(case: Case) -> None:
    inputs = tuple(mg.from_numpy(array).requires_grad_() for array in case.arrays())

    def function(*tensors: Any) -> Any:
        return case.function(MPGRAD, *tensors)

    with mg.Engine("local"):
        if case.name != NO_DERIVATIVE:
            assert gradcheck(function, inputs, fast_mode=True, check_grad_dtypes=True)
        if case.name in ONCE_IN_PYTORCH:  # nothing else compares their second derivatives
            assert gradgradcheck(function, inputs, rtol=2e-5, atol=2e-6)
        else:
            assert gradgradcheck(function, inputs, fast_mode=True)
