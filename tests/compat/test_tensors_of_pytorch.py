"""Tensors of mpgrad and of PyTorch in one expression: the error names both and what helps."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.recording.tensors.of_pytorch import MEND, is_of_pytorch, kind_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def ours(*shape: int) -> Any:
    return mg.ones(*(shape or (2, 3)))


def theirs(*shape: int) -> Any:
    return torch.ones(*(shape or (2, 3)))


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
    "floor_divide": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "matmul": lambda a, b: a @ b.T,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
}


@pytest.mark.parametrize("name", list(OPERATORS))
def test_an_operator_names_both_libraries(name: str) -> None:
    for a, b in ((ours(), theirs()), (theirs(), ours())):
        with pytest.raises(TypeError, match="a tensor of mpgrad meets one of PyTorch") as caught:
            OPERATORS[name](a, b)
        assert str(caught.value).endswith(MEND)


def test_in_place_operators() -> None:
    for a, b in ((ours(), theirs()), (theirs(), ours())):
        with pytest.raises(TypeError, match="a tensor of mpgrad meets one of PyTorch"):
            a += b


CALLS: dict[str, Callable[[], Any]] = {
    "stack(): argument 'tensors' (position 1) must be tuple of Tensors, not list with a "
    "torch.Tensor": lambda: mg.stack([theirs()]),
    "cat(): argument 'tensors' (position 1) must be tuple of Tensors, not list with a "
    "torch.Tensor": lambda: mg.cat([ours(), theirs()]),
    "linear(): argument 'input' (position 1) must be Tensor, not torch.Tensor": (
        lambda: mg.nn.Linear(3, 2)(theirs())
    ),
    "exp(): argument 'input' (position 1) must be Tensor, not torch.Tensor": (
        lambda: mg.exp(theirs())
    ),
    "mse_loss(): argument 'target' (position 2) must be Tensor, not torch.Tensor": (
        lambda: mg.nn.functional.mse_loss(ours(), theirs())
    ),
    "expected a Tensor, a NumPy array or a number, but got torch.Tensor": (
        lambda: ours().copy_(theirs())
    ),
    "assigned grad expected to be a Tensor or None but got grad of type torch.Tensor": (
        lambda: setattr(mg.ones(2, 3, requires_grad=True), "grad", theirs())
    ),
    "gradients can be either Tensors or None, but got torch.Tensor": (
        lambda: mg.ones(2, 3, requires_grad=True).backward(theirs())
    ),
    "TensorDataset: a tensor of mpgrad meets one of PyTorch": (
        lambda: mg.data.TensorDataset(theirs())
    ),
    "torch's exp(): a tensor of mpgrad meets one of PyTorch": lambda: torch.exp(ours()),
    "torch's stack(): a tensor of mpgrad meets one of PyTorch": lambda: torch.stack([ours()]),
    "torch's linear(): a tensor of mpgrad meets one of PyTorch": (
        lambda: torch.nn.Linear(3, 2)(ours())
    ),
    "torch's __getitem__(): a tensor of mpgrad meets one of PyTorch": (
        lambda: theirs()[mg.tensor([0])]
    ),
}


@pytest.mark.parametrize("words", list(CALLS))
def test_a_function_names_the_library(words: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(words)}: {re.escape(MEND)}$"):
        CALLS[words]()


def test_modules_and_parameters() -> None:
    with pytest.raises(TypeError, match=r"^torch\.nn\.modules\.linear\.Linear is not a Module"):
        mg.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"but one of the params is torch\.Tensor$"):
        mg.optim.SGD(torch.nn.Linear(2, 2).parameters())
    state = torch.nn.Linear(2, 2).state_dict()
    model = mg.nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match=r"'torch\.Tensor'>: give its \.numpy\(\)"):
        model.load_state_dict(state)
    model.load_state_dict({name: value.numpy() for name, value in state.items()})
    assert np.array_equal(model.weight.detach().numpy(), state["weight"].numpy())


class Samples:
    def __init__(self, kind: Callable[..., Any]) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.kind(3), index


def test_a_loader_over_tensors_of_pytorch() -> None:
    loader = mg.data.DataLoader(Samples(theirs), batch_size=2)
    with pytest.raises(TypeError, match=r"tensors of PyTorch.* let the dataset return tensor"):
        next(iter(loader))
    batch, _ = next(iter(mg.data.DataLoader(Samples(lambda n: theirs(n).numpy()), batch_size=2)))
    assert isinstance(batch, mg.Tensor)
    collate = torch.utils.data.default_collate
    batch, _ = next(iter(mg.data.DataLoader(Samples(theirs), batch_size=2, collate_fn=collate)))
    assert isinstance(batch, torch.Tensor)


def test_pytorchs_loader_over_tensors_of_mpgrad() -> None:
    loader = torch.utils.data.DataLoader(Samples(ours), batch_size=2)
    with pytest.raises(TypeError, match=r"default_collate: .* found <class 'mpgrad\.Tensor'>"):
        next(iter(loader))
    collate = mg.data.default_collate
    loader = torch.utils.data.DataLoader(Samples(ours), batch_size=2, collate_fn=collate)
    batch, index = next(iter(loader))
    assert isinstance(batch, mg.Tensor)
    assert tuple(batch.shape) == (2, 3)
    assert index.tolist() == [0, 1]


def test_the_lines_that_the_errors_name_are_right() -> None:
    x = mg.ones(3, requires_grad=True)
    assert (torch.from_dlpack(x.detach()) * torch.ones(3)).tolist() == [1, 1, 1]
    y = torch.ones(3, requires_grad=True)
    assert (mg.from_dlpack(y.detach()) * mg.ones(3)).tolist() == [1, 1, 1]


def test_names_of_other_values() -> None:
    assert kind_of(theirs()) == kind_of(torch.nn.Parameter(theirs())) == "torch.Tensor"
    assert kind_of(ours()) == "Tensor"
    assert kind_of([1]) == "list"
    assert not is_of_pytorch(ours())
    assert not is_of_pytorch([np.ones(2)])
