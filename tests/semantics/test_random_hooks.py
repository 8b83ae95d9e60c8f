"""Groups B and G: random graphs with random hooks, whose calls are written down and compared."""

from __future__ import annotations

import random
from typing import Any

import pytest

import mpgrad as mg
from tests.semantics.paired import compare, leaf, row, seen
from tests.torch_outcomes import Of


class Noted:
    """A graph under construction: its tensors by name, and what its hooks have seen."""

    def __init__(self, lib: Any, chance: random.Random) -> None:
        self.lib, self.chance = lib, chance
        self.tensors: dict[str, Any] = {}
        self.log: list[Any] = []
        self._function = _doubles(lib)
        #: A leaf's AccumulateGrad, with its hooks, lives no longer than somebody holds it.
        self._nodes: list[Any] = []

    def build(self) -> None:
        for number in range(self.chance.randint(1, 3)):
            self.tensors[f"leaf {number}"] = leaf(self.lib, 2, seed=number)
        for number in range(self.chance.randint(2, 12)):
            self.tensors[f"node {number}"] = self._step()
        for name, tensor in self.tensors.items():
            for _ in range(self.chance.choice([0, 0, 1, 3])):
                self._hook(name, tensor)

    def _step(self) -> Any:
        names = list(self.tensors)
        first = self.tensors[self.chance.choice(names[-4:])]
        second = self.tensors[self.chance.choice(names)]
        step = self.chance.choice(["mul", "add", "tanh", "function", "square"])
        if step == "mul":
            return first * second
        if step == "add":
            return first + second * 0.5
        if step == "tanh":
            return first.tanh()
        return self._function.apply(first) if step == "function" else first * first

    def _hook(self, name: str, tensor: Any) -> None:
        node = self.lib.autograd.graph.get_gradient_edge(tensor).node
        self._nodes.append(node)
        kind = self.chance.choice(["tensor", "scales", "pre", "post", "at the end"])
        label = f"{name} {kind} {len(self._nodes)}"

        def note(*grads: Any) -> None:
            # Clones: PyTorch makes .grad of what AccumulateGrad got, and adds to it in place.
            self.log.append((label, [grad if grad is None else grad.clone() for grad in grads]))

        if kind == "tensor":
            tensor.register_hook(note)
        elif kind == "scales":
            tensor.register_hook(lambda grad: (note(grad), grad * 0.5)[1])
        elif kind == "pre":
            node.register_prehook(lambda grads: note(*grads))
        elif kind == "post" and "Doubles" in node.name():
            # Its gradients that nobody wants are None here; PyTorch shows what backward returned.
            node.register_hook(lambda inputs, outputs: note(*outputs))
        elif kind == "post":
            node.register_hook(lambda inputs, outputs: note(*inputs, *outputs))
        elif tensor.is_leaf:
            tensor.register_post_accumulate_grad_hook(lambda p: note(p.grad))
        else:
            tensor.retain_grad()


def _doubles(lib: Any) -> Any:
    class Doubles(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    return Doubles


def run(lib: Any, number: int) -> Any:
    """One graph, used in five ways; what its hooks saw and what came of it."""
    chance = random.Random(number)
    made = Noted(lib, chance)
    made.build()
    loss = sum((tensor * tensor).sum() for tensor in list(made.tensors.values())[-2:])
    names = list(made.tensors)
    wanted = chance.sample(names, min(2, len(names)))
    leaves = [tensor for tensor in made.tensors.values() if tensor.is_leaf]
    loss.backward(retain_graph=True)
    made.log.append("with inputs")
    loss.backward(inputs=[made.tensors[name] for name in wanted], retain_graph=True)
    made.log.append("grad")
    grads = lib.autograd.grad(
        loss, [made.tensors[name] for name in wanted], allow_unused=True, retain_graph=True
    )
    made.log.append("create_graph")
    recorded = lib.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
    made.log.append("second")
    total = sum((grad * grad).sum() for grad in recorded if grad is not None)
    second = lib.autograd.grad(total, leaves, allow_unused=True) if total.requires_grad else None
    found = {
        name: tensor.grad if tensor.is_leaf or tensor.retains_grad else None
        for name, tensor in made.tensors.items()
    }
    return made.log, wanted, grads, recorded, second, found


@row("B4", "B12", "B17", "G1", "G3", "G4", "G6", "G7", "G11")
@pytest.mark.parametrize("number", range(40))
def test_against_torch(number: int, of_torch: Of) -> None:
    with mg.Engine("local"):
        ours = seen(run(mg, number), exact=False)
    for oracle, theirs in of_torch(lambda lib: seen(run(lib, number), exact=False)):
        compare(ours, theirs, 1e-9, 1e-12, oracle)


@row("B12", "G7", "G20")
@pytest.mark.process
@pytest.mark.parametrize("number", range(40))
def test_both_modes_do_the_same(number: int, process_engine: mg.Engine) -> None:
    with mg.Engine("local"):
        local = seen(run(mg, number), exact=True)
    compare(seen(run(mg, number), exact=True), local, 0.0, 0.0)
