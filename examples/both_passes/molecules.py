"""Graphs as adjacency lists: messages between atoms, for molecules of different shapes.

python examples/both_passes/molecules.py [atoms of the largest one]
"""

import random
import sys
from dataclasses import dataclass, field
from enum import Enum

import mpgrad as mg
from mpgrad import nn

ATOMS = int(sys.argv[1]) if len(sys.argv) > 1 else 60


class Kind(Enum):
    CARBON = 0
    OXYGEN = 1
    NITROGEN = 2


@dataclass
class Molecule:
    kinds: list[Kind]
    neighbours: dict[int, list[int]] = field(default_factory=dict)

    def join(self, a: int, b: int) -> None:
        self.neighbours.setdefault(a, []).append(b)
        self.neighbours.setdefault(b, []).append(a)


def grown(rng: random.Random, atoms: int) -> Molecule:
    molecule = Molecule([rng.choice(list(Kind)) for _ in range(atoms)])
    for atom in range(1, atoms):
        molecule.join(atom, rng.randrange(atom))
    return molecule


class Messages(nn.Module):
    """Each atom hears its neighbours, a few times; their mean is the energy."""

    def __init__(self, width: int = 16, rounds: int = 3):
        super().__init__()
        self.embedding = nn.ParameterDict(
            {kind.name: nn.Parameter(0.1 * mg.randn(width)) for kind in Kind}
        )
        self.rounds = rounds
        self.update = nn.GRUCell(width, width)
        self.readout = nn.Linear(width, 1)

    def forward(self, molecule: Molecule) -> mg.Tensor:
        states = [self.embedding[kind.name] for kind in molecule.kinds]
        for _ in range(self.rounds):
            heard = [
                mg.stack([states[other] for other in molecule.neighbours[atom]]).sum(0)
                for atom in range(len(states))
            ]
            states = list(self.update(mg.stack(heard), mg.stack(states)))
        return self.readout(mg.stack(states).mean(0))


rng = random.Random(0)
molecules = [grown(rng, rng.randrange(ATOMS // 2, ATOMS)) for _ in range(16)]
energies = [0.1 * molecule.kinds.count(Kind.OXYGEN) for molecule in molecules]

mg.manual_seed(0)
model = Messages()
optimizer = mg.optim.AdamW(model.parameters(), lr=0.01)
for epoch in range(3):
    predicted = mg.cat(mg.parallel_map(model, molecules))
    loss = nn.functional.mse_loss(predicted, mg.tensor(energies))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"epoch {epoch}  loss {loss.item():.7g}")
