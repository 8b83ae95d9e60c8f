"""``python -m stress.branch_runs LIBRARY MODE SEED FIRST NUMBER KILLS``: runs programs of
``branch_programs`` in one mode, and prints what each of them said, one line of JSON each.

The modes are plain (a loop in place of each map), local, and the number of workers.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import random
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import mpgrad as mg
from stress.branch_programs import branch_program
from stress.killer import Killer


def main() -> None:
    library, mode, *numbers = sys.argv[1:]
    seed, first, number, kills = map(int, numbers)
    with _engine(mode) as engine:
        killer = Killer(engine, random.Random(f"{seed}:{first}"), kills, 0) if kills else None
        if killer is not None:
            killer.start()
        for at in range(first, first + number):
            _tell(f"{at}")
            if killer is not None:
                killer.step_begins()
            source = branch_program(seed, at, library).source
            said = _run(f"program_{at}", source, library, mode)
            _tell(json.dumps({"number": at, "said": said}))
        if killer is not None:
            killer.stop()
            _tell(json.dumps({"number": -1 - first, "killed": killer.workers}))


def _tell(line: str) -> None:
    """Print a line of its own, whatever threads of the engine print for workers meanwhile."""
    sys.stdout.write(f"\n{line}\n")
    sys.stdout.flush()


def run_alone(namespace: dict[str, Any], library: str) -> None:
    """Run a program, which is ``__main__``, in the mode of the first argument; print what it
    says."""
    mode = sys.argv[1]
    with _engine(mode):
        for one in _said(namespace, library, mode):
            print(json.dumps(one))


def _engine(mode: str) -> mg.Engine:
    if mode.isdecimal():
        return mg.Engine("process", cpu_workers=int(mode))
    return mg.Engine("local")


def _run(name: str, source: str, library: str, mode: str) -> list[Any]:
    module, own = types.ModuleType("__main__"), sys.modules["__main__"]
    sys.modules["__main__"] = module
    _reset(library)
    try:
        exec(compile(source, f"{name}.py", "exec"), vars(module))
        return _said(vars(module), library, mode)
    finally:
        sys.modules["__main__"] = own


def _reset(library: str) -> None:
    tensors = importlib.import_module(library)
    tensors.set_default_dtype(tensors.float64)
    if library == "torch":
        tensors.set_num_threads(1)
    tensors.manual_seed(1)
    np.random.seed(2)
    random.seed(3)


def _said(namespace: dict[str, Any], library: str, mode: str) -> list[Any]:
    """What a program says, then how it ended, what it has printed and what it has left behind."""
    _reset(library)
    tensors = namespace["T"]
    namespace.update(_ways(library, mode))
    said: list[Any] = []

    def say(label: str, value: Any) -> None:
        said.append([label, _shown(value, tensors)])

    printed = io.StringIO()
    end: list[Any] = ["end", "well", ""]
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")
        try:
            namespace["run"](say)
        except Exception as error:
            end = ["end", type(error).__name__, str(error)[:300]]
    said.append(end)
    leaves = namespace["LEAVES"]
    say("leaves", leaves)
    say("grads", {name: one.grad for name, one in leaves.items()})
    say("state", [namespace[name] for name in ("LOG", "CACHE", "COUNT", "TOTAL")])
    # A call that runs again prints again, and what has failed may print later.
    lines = {re.sub(r"^\[worker \d+\] ", "", line) for line in printed.getvalue().splitlines()}
    say("printed", sorted([line for line in lines if line.startswith(namespace["OWN"])]))
    drawn = tensors.rand(1).item(), np.random.random(), random.random()
    say("drawn", [*drawn, namespace["RNG"].random()])
    return said


def _shown(value: Any, tensors: Any) -> Any:
    """A value in JSON, each bit of it."""
    if isinstance(value, tensors.Tensor):
        form = [str(value.dtype).rpartition(".")[2], value.requires_grad, value.is_leaf]
        return {"tensor": form, "is": value.detach().tolist(), "shape": list(value.shape)}
    if isinstance(value, dict):
        return {str(key): _shown(one, tensors) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *[_shown(one, tensors) for one in value]]
    if isinstance(value, np.ndarray | np.generic):
        return ["array", str(value.dtype), value.tolist()]
    if isinstance(value, bool | int | float | str | None):
        return value
    fields = getattr(value, "__dict__", {})
    return [type(value).__name__, _shown(dict(fields), tensors)]


# ---------------------------------------------------------------------- maps and loops


def _ways(library: str, mode: str) -> dict[str, Any]:
    tensors = importlib.import_module(library)
    if mode == "plain":
        return {
            "PMAP": plain_map,
            "FORK": lambda fn, *args: fn(*args),
            "WAIT": lambda found: found,
            "PARTS": lambda net, parts: (
                lambda x: tensors.cat([net(piece) for piece in x.chunk(parts)])
            ),
            "FMAP": lambda cls, *args: [cls.apply(*item) for item in zip(*args, strict=True)],
        }
    names: Any = mg if library == "mpgrad" else importlib.import_module("mpgrad.torch")
    parallel: Callable[..., Any] = mg.nn.DataParallel if names is mg else names.DataParallel
    return {
        "PMAP": names.parallel_map,
        "FORK": names.fork,
        "WAIT": names.wait,
        "PARTS": lambda net, parts: parallel(net, parts=parts),
        "FMAP": _function_map if names is mg else _parallelized(names.parallelize),
    }


def plain_map(
    fn: Callable[..., Any],
    *iterables: Any,
    shared: Any = (),
    out: str = "list",
    chunks: int | None = None,
) -> Any:
    """The loop in place of a map."""
    keywords = shared if isinstance(shared, dict) else {}
    positional = () if isinstance(shared, dict) else shared
    items = zip(*iterables, strict=True)
    found = [fn(*item, *positional, **keywords) for item in items]
    return _sum(found) if out == "sum" else found


def _sum(trees: list[Any]) -> Any:
    first = trees[0]
    if isinstance(first, dict):
        return {key: _sum([one[key] for one in trees]) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(_sum(list(parts)) for parts in zip(*trees, strict=True))
    return sum(trees[1:], first)


def _function_map(cls: Any, *iterables: Any) -> Any:
    return cls.map(*iterables)


def _parallelized(parallelize: Callable[..., None]) -> Callable[..., list[Any]]:
    def applied(cls: Any, *iterables: Iterator[Any]) -> list[Any]:
        parallelize(cls)
        return [cls.apply(*item) for item in zip(*iterables, strict=True)]

    return applied


if __name__ == "__main__":
    main()
