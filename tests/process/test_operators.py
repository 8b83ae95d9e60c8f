"""Every operator's formula gives the same bits in a worker as here, second derivatives included."""

from __future__ import annotations

from typing import Any

import pytest

import mpgrad as mg
from mpgrad import distributions as D
from tests.distributions.test_distributions import KINDS
from tests.ops.cases import CASES, Case
from tests.ops.test_operators import cotangent_for, run

pytestmark = pytest.mark.process


def derivatives(case: Case) -> list[tuple[str, bytes] | None]:
    """First derivatives of a case, and those of a weighted sum of them."""
    out, inputs = run(case, case.arrays())
    cotangent = mg.tensor(cotangent_for(out), requires_grad=True)
    firsts = mg.grad(out, inputs, cotangent, create_graph=True, allow_unused=True)
    used = [first for first in firsts if first is not None and first.requires_grad]
    weights = [mg.tensor(cotangent_for(first)) for first in used]
    seconds = mg.grad(used, [*inputs, cotangent], weights, allow_unused=True)
    return [_bits(tensor) for tensor in (*firsts, *seconds)]


def _bits(tensor: Any) -> tuple[str, bytes] | None:
    if tensor is None:
        return None
    return f"{tensor.dtype} {tuple(tensor.shape)}", tensor.detach().numpy().tobytes()


@pytest.mark.slow
def test_every_operator_in_workers(engine: mg.Engine) -> None:
    with mg.Engine("local"):
        here = {case.name: derivatives(case) for case in CASES}
    assert [case.name for case in CASES if derivatives(case) != here[case.name]] == []


def test_a_gradient_that_is_passed_on_in_another_shape(engine: mg.Engine) -> None:
    # Both are one block of memory. The second one had the shape of the first.
    def gradients() -> list[Any]:
        x = mg.ones(2, 5000, requires_grad=True)
        flat = x.reshape(-1)
        of_x, of_flat = mg.grad((flat**3).sum(), [x, flat], create_graph=True)
        (second,) = mg.grad((of_x**2).sum(), x)
        return [_bits(gradient) for gradient in (of_x, of_flat, second)]

    with mg.Engine("local"):
        here = gradients()
    assert gradients() == here


@pytest.mark.parametrize(
    "function", [mg.logit, mg.nn.functional.leaky_relu, mg.nn.functional.softplus, mg.nn.ELU]
)
def test_a_number_may_be_given_as_a_tensor(function: Any) -> None:
    # It was an error of forward, or of the workers alone.
    def derivative(option: Any) -> Any:
        x = mg.tensor([0.3, 0.6], requires_grad=True)
        found = function(option)(x) if isinstance(function, type) else function(x, option)
        return _bits(mg.grad(found.sum(), x)[0])

    with mg.Engine("local"):
        expected = derivative(0.25)
        assert derivative(mg.tensor(0.25)) == expected
    with mg.Engine("process", cpu_workers=1):
        assert derivative(mg.tensor(0.25)) == expected


#: Imports all of mpgrad, and compares what is registered then with what one of its workers knows.
EVERYTHING = """
import importlib, pathlib
import numpy as np
import mpgrad as mg

class Known(mg.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        from mpgrad.recording.graph.registry import OPERATORS
        names = " ".join(sorted(OPERATORS)).encode()
        return mg.tensor(list(names.ljust(grad.numel())), dtype=grad.dtype)

x = mg.zeros(20_000, requires_grad=True)
Known.apply(x).sum().backward()
known = bytes(x.grad.numpy().astype(np.uint8)).decode().split()

package = pathlib.Path(mg.__file__).parent
for file in sorted(package.rglob("*.py")):
    parts = file.relative_to(package.parent).with_suffix("").parts
    if parts[-1] != "__main__" and "for_children" not in parts:
        try:
            importlib.import_module(".".join(parts).removesuffix(".__init__"))
        except ImportError as error:
            assert "mpgrad" not in (error.name or ""), error  # cupy and ray are not everywhere
from mpgrad.recording.graph.registry import OPERATORS
print(len(known), sorted(OPERATORS) == known, sorted({*OPERATORS} - {*known}))
"""


@pytest.mark.slow
def test_a_worker_knows_every_operator(run_script: Any) -> None:
    # mpgrad.distributions had one of its own, which no worker had.
    done = run_script(EVERYTHING)
    count, *rest = done.stdout.split()
    assert int(count) > 150, done.stderr
    assert rest == ["True", "[]"]


@pytest.mark.slow
def test_gradients_of_draws_in_workers(engine: mg.Engine) -> None:
    def gradients(name: str) -> list[Any] | None:
        make, arrays, _ = KINDS[name]
        mg.manual_seed(3)
        given = [mg.tensor(array, requires_grad=True) for array in arrays]
        drawn = make(D, *given)
        if not drawn.has_rsample:
            return None
        found = mg.grad((drawn.rsample((50,)) ** 2).sum(), given, allow_unused=True)
        return [_bits(gradient) for gradient in found]

    with mg.Engine("local"):
        here = {name: gradients(name) for name in KINDS}
    assert sum(found is not None for found in here.values()) > 25
    assert [name for name in KINDS if gradients(name) != here[name]] == []
