"""Fourteen programs with custom Functions, written as their authors would write them.

``python -m tests.process.natural_programs`` prints where each Function runs, its message, and what
a step with ``F.map`` in workers takes beside one of the loop in ``local``, in turns: by the clock,
and in processor time, of which two workers count half each; other programs disturb that less.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.interpolate
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg

import mpgrad as mg
from tests.process.natural_kinds import count_functions, number_sent

#: How much work an item is; about 10 ms a pass in ``main``.
EFFORT = {"work": 1}
#: Of a step of the test.
ITEMS = 4

# ---------------------------------------------------------------------- an ensemble of ODEs

RATES = {"birth": 1.1, "death": 0.4, "hunt": [0.4, 0.1]}


def growth(state: Any, scale: float) -> Any:
    prey, hunters = state
    return [
        scale * RATES["birth"] * prey - RATES["hunt"][0] * prey * hunters,
        RATES["hunt"][1] * prey * hunters - RATES["death"] * hunters,
    ]


class Simulate(mg.Function):
    """Lotka and Volterra by Euler's steps, and their adjoint."""

    @staticmethod
    def forward(ctx, x):
        ctx.path = [x.tolist()]
        for _ in range(600 * EFFORT["work"]):
            now = ctx.path[-1]
            ctx.path.append([a + 0.01 * b for a, b in zip(now, growth(now, 1.0), strict=True)])
        return x.new_tensor(ctx.path[-1])

    @staticmethod
    def backward(ctx, grad):
        a, b = grad.tolist()
        for prey, hunters in reversed(ctx.path[:-1]):
            of_prey = RATES["birth"] - RATES["hunt"][0] * hunters
            of_hunters = RATES["hunt"][1] * prey - RATES["death"]
            a, b = (
                a + 0.01 * (a * of_prey + b * RATES["hunt"][1] * hunters),
                b + 0.01 * (b * of_hunters - a * RATES["hunt"][0] * prey),
            )
        return grad.new_tensor([a, b])


# ---------------------------------------------------------------------- a renderer


@dataclasses.dataclass
class Sphere:
    center: list[float]
    radius: float
    shade: float


class Scene:
    def __init__(self) -> None:
        self.spheres = [Sphere([0.1 * at, 0.2], 0.5 + 0.1 * at, 0.3) for at in range(4)]

    def shade_at(self, x: float, y: float) -> float:
        total = 0.0
        for one in self.spheres:
            distance = math.hypot(x - one.center[0], y - one.center[1])
            total += one.shade / (1 + math.exp(8 * (distance - one.radius)))
        return total


SCENE = Scene()


class RenderTile(mg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.corner = x.tolist()
        return x.new_tensor(pixels(ctx.corner))

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.corner
        by_x = (np.array(pixels([x + 1e-4, y])) - np.array(pixels([x - 1e-4, y]))) / 2e-4
        by_y = (np.array(pixels([x, y + 1e-4])) - np.array(pixels([x, y - 1e-4]))) / 2e-4
        g = grad.numpy()
        return grad.new_tensor([(g * by_x).sum(), (g * by_y).sum()])


def pixels(corner: list[float]) -> list[float]:
    side = 12 * EFFORT["work"]
    x, y = corner
    return [SCENE.shade_at(x + 0.1 * i, y + 0.1 * j) for i in range(side) for j in range(4)]


# ---------------------------------------------------------------------- an implicit heat step


class HeatStep(mg.Function):
    """Its factors stand on ctx: SuperLU cannot be copied."""

    @staticmethod
    def forward(ctx, x):
        n = 40 * math.isqrt(EFFORT["work"])
        a, b = np.exp(x.tolist())
        main = (2 + a) * np.ones(n * n)
        ctx.lu = scipy.sparse.linalg.splu(
            scipy.sparse.diags_array(
                [main, -np.ones(n * n - 1), -np.ones(n * n - n)], offsets=[0, 1, n]
            ).tocsc()
        )
        ctx.size, ctx.a, ctx.b = n * n, a, b
        ctx.u = ctx.lu.solve(np.full(n * n, b))
        return x.new_tensor(ctx.u.sum())

    @staticmethod
    def backward(ctx, grad):
        adjoint = ctx.lu.solve(np.full(ctx.size, grad.item()), trans="T")
        return grad.new_tensor([-ctx.a * (adjoint @ ctx.u), ctx.b * adjoint.sum()])


# ---------------------------------------------------------------------- a bank of Kalman filters


class Track:
    def __init__(self) -> None:
        self.motion = np.array([[1.0, 0.1], [0.0, 1.0]])
        self.noise = 0.01 * np.eye(2)
        self.seen = [math.sin(0.1 * at) for at in range(200)]


TRACK = Track()


class LogLikelihood(mg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x.tolist()
        return x.new_tensor(filtered(ctx.x))

    @staticmethod
    def backward(ctx, grad):
        found = []
        for at in range(2):
            high, low = list(ctx.x), list(ctx.x)
            high[at] += 1e-4
            low[at] -= 1e-4
            found.append(grad.item() * (filtered(high) - filtered(low)) / 2e-4)
        return grad.new_tensor(found)


def filtered(x: list[float]) -> float:
    mean, spread, total = np.array([x[0], 0.0]), np.eye(2), 0.0
    for value in TRACK.seen * EFFORT["work"]:
        mean = TRACK.motion @ mean
        spread = TRACK.motion @ spread @ TRACK.motion.T + TRACK.noise
        error, size = value - mean[0], spread[0, 0] + math.exp(x[1])
        total -= error * error / size + math.log(size)
        gain = spread[:, 0] / size
        mean = mean + gain * error
        spread = spread - np.outer(gain, spread[0])
    return float(total)


# ---------------------------------------------------------------------- a portfolio

RNG = np.random.default_rng(5)
COVARIANCE = np.cov(RNG.normal(size=(60, 240)))
SETTINGS = {"risk": 3.0, "turnover": 0.1, "steps": 40}


class Allocate(mg.Function):
    """The best weights for given returns, by a projected gradient."""

    @staticmethod
    def forward(ctx, x):
        matrix = SETTINGS["risk"] * COVARIANCE + SETTINGS["turnover"] * np.eye(60)
        returns = np.resize(x.numpy().astype(float), 60)
        weights = np.full(60, 1 / 60)
        for _ in range(SETTINGS["steps"] * EFFORT["work"]):
            weights = scipy.linalg.solve(matrix, returns + 1e-3 * weights, assume_a="pos")
        ctx.weights = weights
        return x.new_tensor(weights.sum())

    @staticmethod
    def backward(ctx, grad):
        matrix = SETTINGS["risk"] * COVARIANCE + SETTINGS["turnover"] * np.eye(60)
        adjoint = np.full(60, grad.item())
        for _ in range(SETTINGS["steps"] * EFFORT["work"]):
            adjoint = scipy.linalg.solve(matrix, np.ones(60) + 1e-3 * adjoint, assume_a="pos")
        return grad.new_tensor([adjoint[::2].sum(), adjoint[1::2].sum()])


# ---------------------------------------------------------------------- soft dynamic time warping


class SoftDTW(mg.Function):
    """Its table stands on ctx, in nested lists."""

    @staticmethod
    def forward(ctx, x):
        n = 20 * math.isqrt(EFFORT["work"])
        a, b = x.tolist()
        ctx.d = [[(a * i / n - b * j / n) ** 2 for j in range(n)] for i in range(n)]
        ctx.r = [[0.0] * (n + 1) for _ in range(n + 1)]
        for i in range(1, n + 1):
            for j in range(1, n + 1):
                ways = ctx.r[i - 1][j - 1], ctx.r[i - 1][j], ctx.r[i][j - 1]
                low = min(ways)
                ctx.r[i][j] = (
                    ctx.d[i - 1][j - 1] + low - math.log(sum(math.exp(low - w) for w in ways))
                )
        return x.new_tensor(ctx.r[n][n])

    @staticmethod
    def backward(ctx, grad):
        n = len(ctx.d)
        total = 0.0
        for i in range(n, 0, -1):
            for j in range(n, 0, -1):
                total += math.exp(-abs(ctx.r[i][j] - ctx.r[i - 1][j])) * ctx.d[i - 1][j - 1]
        return grad.new_tensor([total, -total]) * grad


# ---------------------------------------------------------------------- a hierarchical model


@dataclasses.dataclass
class Patient:
    weight: float
    doses: list[tuple[float, float]]
    levels: dict[float, float] = dataclasses.field(default_factory=dict)


PATIENTS = [
    Patient(60.0 + at, [(0.0, 1.0), (6.0, 0.5)], {1.0 * t: 2.0 / (1 + t) for t in range(12)})
    for at in range(40)
]


class Absorb(mg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x, ctx.patients = x.tolist(), PATIENTS
        return x.new_tensor(misfit(ctx.x, ctx.patients))

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.x
        by_a = misfit([a + 1e-4, b], ctx.patients) - misfit([a - 1e-4, b], ctx.patients)
        by_b = misfit([a, b + 1e-4], ctx.patients) - misfit([a, b - 1e-4], ctx.patients)
        return grad.new_tensor([by_a / 2e-4, by_b / 2e-4]) * grad


def misfit(x: list[float], patients: list[Patient]) -> float:
    total, (clearance, uptake) = 0.0, map(math.exp, x)
    for patient in patients * EFFORT["work"]:
        for at, level in patient.levels.items():
            got = sum(
                dose * math.exp(-clearance * (at - when)) * (1 - math.exp(-uptake * (at - when)))
                for when, dose in patient.doses
                if when <= at
            )
            total += (got * 70 / patient.weight - level) ** 2
    return total


# ---------------------------------------------------------------------- Monte Carlo


class Option(mg.Function):
    """A seed stands on ctx."""

    @staticmethod
    def forward(ctx, x):
        ctx.x, ctx.seed = x.tolist(), 7
        return x.new_tensor(price(ctx.x, ctx.seed).mean())

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.x
        by_a = price([a + 1e-3, b], ctx.seed) - price([a - 1e-3, b], ctx.seed)
        by_b = price([a, b + 1e-3], ctx.seed) - price([a, b - 1e-3], ctx.seed)
        return grad.new_tensor([by_a.mean() / 2e-3, by_b.mean() / 2e-3]) * grad


def price(x: list[float], seed: int) -> Any:
    steps = np.random.default_rng(seed).normal(size=(20_000 * EFFORT["work"], 5))
    return np.maximum(np.exp(x[0] + 0.1 * math.exp(x[1]) * steps.sum(1)) - 1.0, 0.0)


# ---------------------------------------------------------------------- molecules

ELEMENTS = {"Ar": (0.34, 1.0), "Ne": (0.28, 0.35)}


class Energy(mg.Function):
    """Lennard-Jones over a list of neighbours that forward has made."""

    @staticmethod
    def forward(ctx, x):
        a, b = x.tolist()
        ctx.atoms = [
            ("Ar" if at % 2 else "Ne", 0.4 * at * (1 + 0.01 * a), 0.1 * b) for at in range(60)
        ]
        ctx.pairs = [(i, j) for i in range(60) for j in range(i)] * EFFORT["work"]
        return x.new_tensor(sum(pair(ctx.atoms[i], ctx.atoms[j])[0] for i, j in ctx.pairs))

    @staticmethod
    def backward(ctx, grad):
        force = sum(pair(ctx.atoms[i], ctx.atoms[j])[1] * (i - j) for i, j in ctx.pairs)
        return grad.new_tensor([0.004 * force, 0.0]) * grad


def pair(first: Any, second: Any) -> tuple[float, float]:
    size = (ELEMENTS[first[0]][0] + ELEMENTS[second[0]][0]) / 2
    depth = math.sqrt(ELEMENTS[first[0]][1] * ELEMENTS[second[0]][1])
    r = abs(first[1] - second[1]) + 1e-9
    s6 = (size / r) ** 6
    return 4 * depth * (s6 * s6 - s6), -24 * depth * (2 * s6 * s6 - s6) / r


# ---------------------------------------------------------------------- a memo

KNOWN: dict[tuple[float, ...], list[float]] = {}


class Memoized(mg.Function):
    """Its backward writes into a table that the program keeps."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x.tolist()
        return x.new_tensor(black_box(ctx.x))

    @staticmethod
    def backward(ctx, grad):
        key = tuple(ctx.x)
        if key not in KNOWN:
            a, b = ctx.x
            KNOWN[key] = [
                (black_box([a + 1e-4, b]) - black_box([a - 1e-4, b])) / 2e-4,
                (black_box([a, b + 1e-4]) - black_box([a, b - 1e-4])) / 2e-4,
            ]
        return grad.new_tensor(KNOWN[key]) * grad


def black_box(x: list[float]) -> float:
    return sum(
        math.sin(x[0] * at) * math.cos(x[1] / (1 + at)) for at in range(4_000 * EFFORT["work"])
    )


# ---------------------------------------------------------------------- a spline

CURVE = scipy.interpolate.CubicSpline(np.arange(50.0), np.sin(np.arange(50.0)))


class Calibrate(mg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.at = np.linspace(*sorted(x.tolist()), 20_000 * EFFORT["work"])
        return x.new_tensor(CURVE(ctx.at).mean())

    @staticmethod
    def backward(ctx, grad):
        slope, weight = CURVE(ctx.at, 1), np.linspace(0, 1, len(ctx.at))
        return grad.new_tensor([(slope * (1 - weight)).mean(), (slope * weight).mean()]) * grad


# ---------------------------------------------------------------------- a network of springs

SPRINGS = scipy.sparse.diags_array(
    [np.full(900, 4.2), np.full(899, -1.0), np.full(899, -1.0), np.full(870, -1.0)],
    offsets=[0, 1, -1, 30],
).tocsc()


class Settle(mg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.load = np.resize(x.numpy().astype(float), 900)
        found = [scipy.sparse.linalg.spsolve(SPRINGS, ctx.load) for _ in range(3 * EFFORT["work"])]
        return x.new_tensor(found[0].sum())

    @staticmethod
    def backward(ctx, grad):
        for _ in range(3 * EFFORT["work"]):
            adjoint = scipy.sparse.linalg.spsolve(SPRINGS.T.tocsc(), np.full(900, grad.item()))
        return grad.new_tensor([adjoint[::2].sum(), adjoint[1::2].sum()])


# ---------------------------------------------------------------------- tomography


def ray(angle: float, size: int, x: list[float]) -> float:
    return sum(math.exp(-((math.cos(angle) * at - x[0]) ** 2) - x[1] ** 2) for at in range(size))


RAYS = tuple(functools.partial(ray, 0.1 * at) for at in range(30))


class Project(mg.Function):
    """Its rays are partials, and it logs to a list of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.x, ctx.log = x.tolist(), []
        return x.new_tensor([one(100 * EFFORT["work"], ctx.x) for one in RAYS])

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.x
        size = 100 * EFFORT["work"]
        by_a = [(one(size, [a + 1e-4, b]) - one(size, [a - 1e-4, b])) / 2e-4 for one in RAYS]
        by_b = [(one(size, [a, b + 1e-4]) - one(size, [a, b - 1e-4])) / 2e-4 for one in RAYS]
        ctx.log.append(max(by_a))
        g = grad.numpy()
        return grad.new_tensor([(g * by_a).sum(), (g * by_b).sum()])


# ---------------------------------------------------------------------- noise

NOISE = np.random.default_rng(3)


class Private(mg.Function):
    """Its backward adds noise of a generator that the program has."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x.tolist()
        return x.new_tensor(black_box(ctx.x))

    @staticmethod
    def backward(ctx, grad):
        noise = sum(NOISE.normal() for _ in range(1_000 * EFFORT["work"])) / 1_000
        return grad.new_tensor([noise, black_box(ctx.x)]) * grad


class NaturalProgram(NamedTuple):
    """A Function, where it runs, and what its message says."""

    function: type[mg.Function]
    where: str = "worker"
    message: str = ""


PROGRAMS = {
    "ODE ensemble": NaturalProgram(Simulate),
    "renderer": NaturalProgram(RenderTile),
    "heat solver": NaturalProgram(HeatStep, "client", "Set what it is made of on ctx"),
    "Kalman bank": NaturalProgram(LogLikelihood),
    "portfolio": NaturalProgram(Allocate),
    "soft-DTW": NaturalProgram(SoftDTW),
    "hierarchical model": NaturalProgram(Absorb),
    "Monte Carlo": NaturalProgram(Option),
    "molecules": NaturalProgram(Energy),
    "memo": NaturalProgram(
        Memoized, "client", "its backward changes `KNOWN` in Memoized.backward()"
    ),
    "spline": NaturalProgram(Calibrate),
    "springs": NaturalProgram(Settle),
    "tomography": NaturalProgram(Project),
    "noise": NaturalProgram(Private, "client", "Draw from np.random.default_rng(ctx.seed)"),
}


def step(function: type[mg.Function], items: int, *, maps: bool = False) -> list[bytes]:
    """One step of a program over a loop of its Function: the gradients."""
    KNOWN.clear()
    NOISE.bit_generator.state = np.random.default_rng(3).bit_generator.state
    xs = [
        mg.tensor([0.3 + 0.1 * at, 0.7], dtype=mg.float64, requires_grad=True)
        for at in range(items)
    ]
    outputs = function.map(xs, changes=("KNOWN",)) if maps else [function.apply(x) for x in xs]
    mg.stack([output.sum() for output in outputs]).sum().backward()
    return [x.grad.numpy().tobytes() for x in xs if x.grad is not None]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with mg.Engine("process", cpu_workers=2):
        for name, program in PROGRAMS.items():
            EFFORT["work"] = 1
            where, texts, _ = steps(program.function)
            print(f"{name:18} {where:6} {' '.join(texts)}", flush=True)
            if where == "worker" or program.function is HeatStep:
                print(f"{'':18} {_ratios(program.function, rounds)}", flush=True)


def steps(function: type[mg.Function]) -> tuple[str, list[str], list[list[bytes]]]:
    """Where workers or this process run the Function in the third step, what has been said of it,
    and the gradients."""
    count_functions()
    gradients = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            before = number_sent()
            gradients.append(step(function, ITEMS))
    texts = [str(one.message) for one in said if "apply() at" not in str(one.message)]
    return "worker" if number_sent() == before + ITEMS else "client", texts, gradients


def _ratios(function: type[mg.Function], rounds: int) -> str:
    with mg.Engine("local"):
        step(function, 8)
        _, took = _timed(function, maps=False)
    EFFORT["work"] = max(round(0.16 / took), 1)
    for _ in range(2):
        step(function, 8, maps=True)
    here, there = [], []
    for _ in range(rounds):
        with mg.Engine("local"):
            here.append(_timed(function, maps=False))
        there.append(_timed(function, maps=True))
    (clock, work), (their_clock, their_work) = map(_best, (here, there))
    return (
        f"8 items of {work * 125:.1f} ms: local / F.map {work / their_work:.2f} in processor time, "
        f"{clock / their_clock:.2f} by the clock"
    )


def _timed(function: type[mg.Function], *, maps: bool) -> tuple[float, float]:
    """Seconds of a step, by the clock and of processors: this one, and half of the workers'."""
    workers, own, started = _of_children(), time.process_time(), time.perf_counter()
    step(function, 8, maps=maps)
    ended, own = time.perf_counter(), time.process_time() - own
    return ended - started, own + (_of_children() - workers) / 2


def _best(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    return min(clock for clock, _ in pairs), min(work for _, work in pairs)


def _of_children() -> float:
    """Seconds of processors that the processes below this one have had."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found, pending = 0, [os.getpid()]
    while pending:
        parent = pending.pop()
        for process in [one for one, of in parents.items() if of == parent]:
            pending.append(process)
            for task in Path(f"/proc/{process}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):
                    found += int(task.read_text().split()[0])
    return found / 1e9


if __name__ == "__main__":
    main()
