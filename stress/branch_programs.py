"""Random programs of branches as source: maps, sums, forks, Modules and Functions, then backwards.

A program names its tensors' library ``T`` and gets its maps from globals (``PMAP``, ``FORK``,
``WAIT``, ``PARTS``, ``FMAP``), so that the same source is also the plain loop.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

_HEAD = '''"""{title}; alone: python FILE plain|local|1|2|4"""
import contextlib, dataclasses, functools, itertools, os, random, threading
import numpy as np
import {library} as T

def leaf(name, seed, *shape):
    values = np.random.default_rng(seed).uniform(-1, 1, shape)
    LEAVES[name] = T.tensor(values, requires_grad=True)
    return LEAVES[name]

def flat(tree):
    if isinstance(tree, T.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, Pair):
        tree = [tree.first, tree.second]
    return [one for part in tree for one in flat(part)] if isinstance(tree, (list, tuple)) else []

def total(tree):
    parts = [(one * one).sum() for one in flat(tree) if one.dtype.is_floating_point]
    return sum(parts) + LEAVES["bias"].sum() if parts else LEAVES["bias"].sum()

@dataclasses.dataclass
class Pair:
    first: object
    second: object

class Own(Exception):
    pass

class Cube(T.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.detach() ** 3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3.0 * x * x

class Tied(T.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = T.nn.Linear(3, 3)
        self.two = T.nn.Linear(3, 3)
        self.two.weight = self.one.weight
        self.register_buffer("scale", T.ones(3))

    def forward(self, x):
        return T.tanh(self.two(self.one(x))) * self.scale

class Counts(T.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = T.nn.Linear(3, 3)
        self.register_buffer("seen", T.zeros(1))

    def forward(self, x):
        self.seen += 1.0
        return self.one(x)

def doubled(grad):
    return grad * 2.0

def inner(x, w=None):
    return T.sin(x) if w is None else T.sin(x) @ w

LEAVES = {{}}
LOG, CACHE, COUNT, TOTAL = [], {{}}, [0], 0.0
STREAM, LOCK, RNG = (one for one in itertools.count()), threading.Lock(), np.random.default_rng(3)
leaf("bias", 99, 3)
G = leaf("global", 98, 3, 3)
FIXED = T.ones(3, 3) * 0.5
OWN = "{title}:"
'''

_TAIL = """
from stress.branch_runs import run_alone
run_alone(globals(), {library!r})
"""

_PURE = (
    "h = T.tanh(h @ w)",
    "h = h @ w.t() + w",
    "h = h * h - 0.5",
    "h = T.sin(h) + x",
    "h = h @ x.t()",
    "h = h.t().contiguous() + h",
    "h = h.t()",
    "h = h * k",
    "h = h + G",
    "h = h * FIXED",
    "h = h.detach() * h",
    "with T.no_grad():\n    c = h.mean()\nh = h * c",
    "h = h.clone()\nh.mul_(1.5)",
    "h = T.cat([h[:1], h[1:] * 2.0])",
    "y = h.clone()\ny[0] = h[1] * 2.0\nh = y",
    "h = Cube.apply(h)",
    "h = net(h)",
    "h = net(h) + net(x)",
    "h = h * 1.0\nif h.requires_grad:\n    h.register_hook(doubled)",
    "h = h + sum(PMAP(inner, [h, h * 2.0]))",
    "h = h + PMAP(inner, [h, x], shared=(w,), out='sum')",
    "h = h + WAIT(FORK(inner, h))",
    "h = T.utils.checkpoint.checkpoint(inner, h, use_reentrant=False)",
    "if h.requires_grad:\n    (g,) = T.autograd.grad((h * h).sum(), h, create_graph=True)\n"
    "    h = h + 0.1 * g",
    "h = h + T.as_tensor(data)",
    "h = functools.reduce(T.add, [h, x, w])",
    "h = T.where(h > 0, h, 0.1 * h)",
)  # fmt: skip
_RANDOM = (
    "h = h + T.rand(3, 3)",
    "h = T.nn.functional.dropout(h, 0.3)",
    "h = h * float(np.random.random())",
    "h = h * random.random()",
    "h = h * float(rng.random())",
)
#: What a loop allows and a call may not: refused alike everywhere, or alike in its effect.
_IMPURE = (
    "x.mul_(2.0)",
    "w.data.mul_(2.0)",
    "LOG.append(k)",
    "CACHE[k] = 1.0",
    "COUNT[0] += 1",
    "global TOTAL\nTOTAL += 1.0",
    "next(STREAM)",
    "with LOCK:\n    pass",
    "net.last = k",
    "RNG.random()",
    "if k == 2.0:\n    raise ValueError('two')",
    "if k >= 1.0:\n    raise Own(k)",
    "(h * h).sum().backward()",
    "os.environ['FUZZ_OF_BRANCHES'] = '1'",
    "data[0] = 5.0",
    "h = T.ones(2, 3) @ T.ones(2, 3)",
    "FIXED.add_(1.0)",
    "net.one.weight.grad = None",
    "h = h + doubled.__dict__.setdefault('calls', 0)",
)
_PRINTS = ("print(OWN, k)", "print(OWN, float(h.detach().sum()) > 0)")
_RESULTS = (
    "h", "h", "h", "h.sum()", "h.sum()", "h.mean(0)", "(h, h * 2.0)", "{'a': h, 'b': x * 2.0}",
    "[h, h]", "(h, h.t())", "h[1:]", "x", "(x, h)", "x[0]", "(h, 3, 'text', None)",
    "Pair(h, k)", "(h.sum(), float(k))", "h.detach()", "(h, h.detach())", "w", "(h, data * 2.0)",
    "float(h.detach().sum())", "None", "(h > 0, h)", "T.nn.Parameter(h.detach())", "[]",
    "(h.sum(), w.sum())", "h.unbind(0)", "(h, {'n': [h.sum(), (k,)]})",
)  # fmt: skip
_SUMMED = (
    "h", "h.sum()", "(h, h.sum())", "{'a': h, 'n': k}", "[h, (h.mean(0), k)]", "k", "data", "x",
    "h.t()", "(h, x)", "h.detach()", "[w, h]",
)  # fmt: skip
_NETS = (
    ("T.nn.Linear(3, 3)", 4),
    ("Tied()", 3),
    ("Counts()", 1),
    ("T.nn.Sequential(T.nn.Linear(3, 3), T.nn.BatchNorm1d(3))", 1),
    ("T.nn.Sequential(T.nn.Linear(3, 3), T.nn.BatchNorm1d(3)).eval()", 1),
    ("T.nn.Sequential(T.nn.Linear(3, 3), T.nn.Dropout(0.5)).eval()", 1),
)


class BranchProgram(NamedTuple):
    """A program.

    Attributes:
        source: it defines ``run(say)``.
        alone: what makes of it a program that runs alone.
        has_own_numbers: whether it draws random numbers, or counts calls of Modules, in items: a
            plain loop then gives others.
    """

    source: str
    alone: str
    has_own_numbers: bool


def branch_program(seed: int, number: int, library: str) -> BranchProgram:
    """Program ``number`` of a run, for ``mpgrad`` or ``torch``."""
    return _Writer(random.Random(f"{seed}:{number}"), library).program(
        f"branches of seed {seed}, program {number}"
    )


class _Writer:
    def __init__(self, chance: random.Random, library: str) -> None:
        self._chance, self._library = chance, library
        self._draws = False
        self._has_single_results = True
        #: Whether a call and its result have the memory of the arguments, as in a loop.
        self._shares_memory = True
        self._lines: list[str] = []
        self._functions: list[str] = []
        self._computed: list[str] = []

    def program(self, title: str) -> BranchProgram:
        one = self._chance
        is_impure = one.random() < 0.15
        names = [f"f{at}" for at in range(one.choice((1, 1, 2)))]
        self._bring_items()
        for at, name in enumerate(names):
            sums = one.random() < 0.3
            self._function(name, is_impure=is_impure and at == 0, is_sum=sums)
            self._apply(name, at, is_sum=sums)
        if one.random() < 0.25:
            self._apply_modules(len(names))
        self._differentiate()
        body = "\n".join("    " + line for part in self._lines for line in part.splitlines())
        head = _HEAD.format(title=title, library=self._library)
        source = "\n".join([head, *self._functions, f"def run(say):\n{body}"])
        return BranchProgram(source, _TAIL.format(library=self._library), self._draws)

    def _some(self, pool: Sequence[str]) -> str:
        return self._chance.choice(pool)

    def _add(self, *lines: str) -> None:
        self._lines.extend(lines)

    # ------------------------------------------------------------------ items

    def _bring_items(self) -> None:
        one = self._chance
        self._count = one.choice((1, 2, 3, 3, 4, 6))
        n = self._count
        xs = self._some(
            (
                f"[leaf(f'x{{at}}', at, 3, 3) for at in range({n})]",
                f"[leaf('x', 1, 3, 3)] * {n}",
                f"[leaf('x', 1, 3, 3) * (at + 1.0) for at in range({n})]",
                f"list(leaf('x', 1, {n}, 3, 3).unbind(0))",
                f"[leaf('x', 1, 3, {n}, 3)[:, at] for at in range({n})]",
                f"[leaf(f'x{{at}}', at, 3, 3).t() for at in range({n})]",
                f"[T.ones(3, 3) * at for at in range({n})]",
                f"[T.tanh(leaf('x', 1, 3, 3))] * {n}",
                f"[leaf('x', 1, 3).expand(3, 3)] * {n}",
            )
        )
        self._add(f"xs = {xs}")
        nets, weights = zip(*_NETS, strict=True)
        net = one.choices(nets, weights)[0]
        self._draws |= net == "Counts()" or "BatchNorm1d(3))" in net
        self._add(
            f"ks = [float(at) for at in range({n})]",
            "w = leaf('w', 50, 3, 3)",
            self._some(("", "", "w = T.tanh(w)", "w = w.t()", "w = w.detach()")),
            f"net = {net}",
            "net.double()",
            "data = np.arange(3.0)",
            f"rngs = np.random.default_rng(4).spawn({n})",
        )
        self._add("LEAVES.update(net.named_parameters())")
        if one.random() < 0.3:
            self._add(
                self._some(
                    (
                        "LEAVES['w'].register_hook(doubled)",
                        "LEAVES['w'].register_hook(lambda grad: say('hook of w', grad))",
                        "next(net.parameters()).register_hook(lambda grad: say('of net', grad))",
                        "next(net.parameters()).requires_grad_(False)",
                        "LEAVES['w'].register_post_accumulate_grad_hook("
                        "lambda one: say('after', one.grad))",
                        "G.register_hook(doubled)",
                        "if xs[0].requires_grad:\n    xs[0].register_hook(doubled)",
                        "if xs[-1].requires_grad:\n"
                        "    xs[-1].register_hook(lambda grad: say('x', grad))",
                    )
                )
            )

    # ------------------------------------------------------------------ functions

    def _function(self, name: str, *, is_impure: bool, is_sum: bool) -> None:
        one = self._chance
        lines = [self._some(_PURE) for _ in range(one.randint(1, 5))]
        if one.random() < 0.1:
            lines.insert(one.randrange(len(lines) + 1), self._some(_RANDOM))
            self._draws = True
        if is_impure:
            lines.insert(one.randrange(len(lines) + 1), self._some(_IMPURE))
        if one.random() < 0.1:
            lines.append(self._some(_PRINTS))
        result = self._some(_SUMMED if is_sum else _RESULTS)
        self._shares_memory &= result != "x[0]"
        self._has_single_results &= result in ("h", "h.sum()", "h.mean(0)")
        declared = [line for line in ("global TOTAL",) if any(line in part for part in lines)]
        body = [*declared, "h = x * 1.0", *(part.replace("global TOTAL\n", "") for part in lines)]
        text = "\n".join("    " + line for part in body for line in part.splitlines())
        self._functions.append(
            f"def {name}(x, k, rng, w, net, data):\n{text}\n    return {result}\n"
        )

    def _apply(self, name: str, at: int, *, is_sum: bool) -> None:
        one, out = self._chance, f"o{at}"
        xs = "xs"
        if at and one.random() < 0.6:  # chained
            xs = "chained"
            self._add(
                f"found = [part for part in flat(o{at - 1}) if part.shape == (3, 3)]",
                "found = [part for part in found if part.dtype == T.float64]",
                f"chained = [*found, *xs][:{self._count}]",
            )
        chunks = self._some(("", "", ", chunks=1", ", chunks=2", ", chunks=3"))
        shared = self._some(("shared=(w, net, data)", "shared=dict(w=w, net=net, data=data)"))
        form = self._some(("map", "map", "map", "fork", "partial", "lambda"))
        if is_sum:
            call = f"PMAP({name}, {xs}, ks, rngs, {shared}, out='sum'{chunks})"
        elif form == "fork":
            call = (
                f"[WAIT(one) for one in [FORK({name}, *item, w, net, data)"
                f" for item in zip({xs}, ks, rngs)]]"
            )
        elif form == "partial":
            call = (
                f"PMAP(functools.partial({name}, net=net, w=w, data=data), {xs}, ks, rngs{chunks})"
            )
        elif form == "lambda":
            call = f"PMAP(lambda x, k, rng: {name}(x, k, rng, w, net, data), {xs}, ks, rngs)"
        else:
            call = f"PMAP({name}, {xs}, ks, rngs, {shared}{chunks})"
        guard = self._some(("", "", "", "", "", "with T.no_grad():")) if self._shares_memory else ""
        self._add(guard + "\n    " * bool(guard) + f"{out} = {call}")
        # A view that a loop makes under no_grad says that it requires grad; PyTorch has it so.
        self._add(f"say('{out}{guard and ' without grad'}', {out})")
        if not is_sum:
            self._add(f"say('same', [a is b for a, b in zip({out}, {xs})])")
        self._computed.append(out)

    def _apply_modules(self, at: int) -> None:
        out = f"o{at}"
        call = self._some(
            (
                "PARTS(net, 2)(T.cat(xs))",
                "PARTS(net, 3)(w)",
                "FMAP(Cube, xs)",
                "FMAP(Cube, [w, *xs])",
            )
        )
        self._shares_memory &= "PARTS" not in call
        self._add(f"{out} = {call}", f"say('{out}', {out})")
        self._computed.append(out)

    # ------------------------------------------------------------------ backward

    def _differentiate(self) -> None:
        one = self._chance
        chosen = [name for name in self._computed if one.random() < 0.8] or self._computed[-1:]
        outs = f"[{', '.join(chosen)}]"
        # A hook of one result sees no gradient that comes through another one of the same call.
        if one.random() < 0.2 and self._has_single_results:
            self._add(f"for one in flat({outs}):\n    one.requires_grad and one.retain_grad()")
        if one.random() < 0.2 and self._has_single_results:
            self._add(
                f"for one in flat({outs})[:1]:",
                "    one.requires_grad and one.register_hook(doubled)",
            )
        if one.random() < 0.1 and self._has_single_results:
            outs = f"flat({outs})[::2]"
        self._add(f"loss = total({outs})")
        if one.random() < 0.15 and self._shares_memory:
            self._add(
                self._some(
                    (
                        "with T.no_grad():\n    w.add_(1.0)",
                        "with T.no_grad():\n    xs[0].add_(1.0)",
                        "with T.no_grad():\n    G.mul_(2.0)",
                        "FIXED.mul_(2.0)",
                        "with T.no_grad():\n    next(net.parameters()).mul_(2.0)",
                        "data[0] = 9.0",
                        "ks[0] = 9.0",
                    )
                )
            )
        way = self._some(("one", "one", "one", "twice", "grad", "create", "each", "step", "freed"))
        if way == "one" or (way == "each" and not self._has_single_results):
            self._add("loss.backward()")
        elif way == "twice":
            self._add("loss.backward(retain_graph=True)", "say_grads(say)", "loss.backward()")
        elif way == "freed":
            self._add("loss.backward()", "say_grads(say)", "loss.backward()")
        elif way == "grad":
            self._add(
                "some = [*LEAVES.values()][::2]",
                "some = [one for one in some if one.requires_grad]",
                "say('grad', T.autograd.grad(loss, some, allow_unused=True))",
            )
        elif way == "create":
            self._add(
                "some = [one for one in LEAVES.values() if one.requires_grad]",
                "gs = T.autograd.grad(loss, some, create_graph=True, allow_unused=True)",
                "say('first', gs)",
                "gs = [(g * g).sum() for g in gs if g is not None]",
                "(sum(gs) + loss).backward()",
            )
        elif way == "each":
            self._add(
                f"for one in flat({outs}):",
                "    if one.requires_grad and one.dtype == T.float64:",
                "        one.sum().backward(retain_graph=True)",
            )
        else:
            self._add(
                "loss.backward()",
                "sgd = T.optim.SGD([one for one in LEAVES.values() if one.is_leaf], lr=0.1)",
                "sgd.step()",
                "say_grads(say)",
                f"{chosen[0]}_again = PMAP(inner, xs, shared=(w,))",
                f"total({chosen[0]}_again).backward()",
            )
        self._functions.append(
            "def say_grads(say):\n"
            "    say('grads', {name: one.grad for name, one in LEAVES.items()})\n"
        )
        self._add("say('net', dict(net.named_buffers()))")
