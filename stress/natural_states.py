"""The kinds of what natural Functions read by name and set on ctx, as states of random programs.

Each of them is also changed in place, by a backward or between two.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.process.natural_kinds import HEAD, ON_CTX, READS, Kind


class State(NamedTuple):
    """One kind of state; every part is source, and may be empty. ``§`` stands for a number that no
    other part of the program has.

    Attributes:
        top: what makes it.
        read: statements of a backward that add to ``value``.
        write: statements of a backward that change it.
        between: statements that change it between two backwards; ``step`` counts those.
        forward: statements of the forward, for what stands on ctx.
    """

    top: str = ""
    read: str = ""
    write: str = ""
    between: str = ""
    forward: str = ""


#: Classes of the kinds, and what changes a value of nearly every kind in place.
TOP = f"""{HEAD}
def alter(it):
    if isinstance(it, np.ndarray) and it.dtype.kind in "fiu" and it.size and it.flags.writeable:
        it.flat[0] += 1
    elif isinstance(it, (list, collections.deque)):
        if isinstance(it[0], float):
            it[0] += 1.0
        else:
            alter(it[-1])
    elif isinstance(it, dict):
        for key in list(it)[:1]:
            if isinstance(it[key], (int, float)):
                it[key] += 1
            else:
                alter(it[key])
    elif isinstance(it, set):
        it ^= {{2}}
    elif isinstance(it, mg.Tensor):
        it.add_(1.0)
    elif isinstance(it, mg.nn.Module):
        alter(it.bias.detach())
    elif scipy.sparse.issparse(it):
        it.data[0] += 1.0
    elif isinstance(it, CubicSpline):
        alter(it.c)
    elif isinstance(it, types.MethodType):
        alter(it.__self__)
    elif isinstance(it, types.FunctionType):
        alter(it.__defaults__[-1] if it.__defaults__ else None)
    elif isinstance(it, (Plain, Slots, Open, types.SimpleNamespace)):
        it.scale += 1.0
    elif isinstance(it, type) and it is Limits:
        Limits.LOW += 0.5
        alter(Limits.TABLE)
    elif isinstance(it, (np.random.Generator, random.Random)):
        it.random()
"""


def natural_states() -> dict[str, State]:
    """By its name."""
    states = {f"reads {name}": _state(kind) for name, kind in READS.items()}
    return states | {f"has on ctx {name}": _state(kind) for name, kind in ON_CTX.items()}


def _state(kind: Kind) -> State:
    def own(source: str) -> str:
        return re.sub(r"\b(X|f|make|(?<=ctx\.)it)\b", r"\1§", source)

    top = own(kind.top)
    named = re.search(r"^(?:def )?([Xf]§)", top, re.MULTILINE)
    changed = named[1] if named else "Limits" if "Limits" in kind.value else ""
    return State(
        top=top,
        read=f"value += float({own(kind.value)})",
        write="alter(ctx.it§)" if kind.on_ctx else f"alter({changed})" if changed else "",
        between=f"alter({changed})" if changed else "",
        forward=f"ctx.it§ = {own(kind.on_ctx)}" if kind.on_ctx else "",
    )
