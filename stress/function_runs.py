"""``python -m stress.function_runs MODE CHECK SEED FIRST NUMBER``: runs programs of
``function_programs`` in one mode, and prints what each of them gave, one line of JSON each.

State that belongs to the process is set to the same before each program. What is left all the same
both modes meet: each goes through the same programs in the same order.
"""

from __future__ import annotations

import builtins
import collections
import copyreg
import decimal
import faulthandler
import gc
import hashlib
import importlib
import json
import locale
import logging
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import tracemalloc
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

import mpgrad as mg
from mpgrad.engine.spot_checks import SpotChecks
from stress.function_programs import program

STEPS = 3
COSH, EXP = np.cosh, math.exp
#: What programs replace.
_REPLACED = [
    (owner, name, getattr(owner, name))
    for owner, name in (
        (builtins, "abs"), (json, "loads"), (math, "exp"), (mg, "exp"), (mg.Tensor, "exp"),
        (np, "cosh"), (sys, "unraisablehook"),
    )
]  # fmt: skip
_COMPLEX = copyreg.dispatch_table[complex]
_dumps = json.dumps
#: What a program may leave behind in a namespace, by type.
_SHOWN = (bool, int, float, str, tuple, list, dict, np.ndarray)
#: Functions that were sent to workers.
sent = collections.Counter[str]()


def main() -> None:
    mode, check, *numbers = sys.argv[1:]
    seed, first, number = map(int, numbers)
    _count_functions()
    with tempfile.TemporaryDirectory() as directory, mg.Engine(mode, cpu_workers=2, check=check):
        os.chdir(directory)
        before = _Process.now()
        for at in range(first, first + number):
            print(f"{at}", flush=True)
            before.restore()
            source, kinds = program(seed, at)
            result = _run(f"program_{at}", source, directory)
            shown = {"number": at, "kinds": kinds, "result": result, "sent": sent["functions"]}
            print(_dumps(shown), flush=True)
            sent.clear()
        before.restore()
        os.chdir("/")


def _count_functions() -> None:
    chooses = SpotChecks.chooses

    def counted(self: SpotChecks, *arguments: Any, **words: Any) -> bool:
        sent["functions"] += 1
        return chooses(self, *arguments, **words)

    SpotChecks.chooses = counted  # type: ignore[method-assign]


def _run(name: str, source: str, directory: str) -> list[Any]:
    """For each backward the bits of the gradient, and what is left behind; or the error."""
    module = sys.modules[name] = types.ModuleType(name)
    known = {"BASE": directory, "PID": os.getpid(), "COSH": COSH, "EXP": EXP}
    vars(module).update(known)
    results: list[Any] = []
    try:
        exec(compile(source, f"{name}.py", "exec"), vars(module))
        x = mg.tensor([1.0, 2.0, 3.0], dtype=mg.float64, requires_grad=True)
        for step in range(STEPS):
            loss = module.loss(x)
            for _ in range(2):
                loss.backward(retain_graph=True)
                assert x.grad is not None
                results.append([x.grad.numpy().tobytes().hex(), _left(module, known)])
                x.grad = None
            module.change(step)
    except Exception as error:
        results.append(["error", type(error).__name__, str(error)[:300]])
    del sys.modules[name]
    return results


def _left(module: types.ModuleType, known: dict[str, Any]) -> str:
    """What can be seen of the program's state and the process's, as a digest."""
    seen: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name in known or name.startswith("__"):
            continue
        _show(seen, name, value)
        if getattr(value, "__module__", None) == module.__name__:
            for inner, held in getattr(value, "__dict__", {}).items():
                _show(seen, f"{name}.{inner}", held)
            _show(seen, f"{name}.defaults", getattr(value, "__defaults__", None))
    text = _dumps([seen, _of_process()], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16] + (text if _IS_VERBOSE else "")


_IS_VERBOSE = "FUZZ_VERBOSE" in os.environ


def _show(seen: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(value, mg.Tensor):
        value = value.numpy()
    if isinstance(value, _SHOWN) and "__" not in name and not name.startswith("FD"):
        seen[name] = repr(value)


def _of_process() -> list[Any]:
    lib = importlib.import_module("settings_for_fuzz")
    return [
        {name: os.environ.get(name) for name in ("FUZZ", "TZ")},
        {path.name: path.read_bytes().hex() for path in Path().iterdir() if path.is_file()},
        sorted(os.listdir()),
        repr(random.getstate())[-60:],
        np.random.get_state()[2],  # type: ignore[index]
        mg.initial_seed(),
        decimal.getcontext().prec,
        (np.geterr(), np.getbufsize(), np.get_printoptions()["precision"]),
        (sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits()),
        (locale.setlocale(locale.LC_ALL), time.tzname, len(warnings.filters), gc.isenabled()),
        (signal.getsignal(signal.SIGUSR2), logging.getLogger("l").level, len(sys.path)),
        (np.cosh is COSH, math.exp is EXP, str(mg.get_default_dtype())),
        (lib.SCALE, lib.OPTIONS, lib.TABLE, lib.config.scale),
    ]


class _Process:
    """State of this process that every program finds as it was."""

    @classmethod
    def now(cls) -> _Process:
        made = cls()
        made.path, made.arguments = list(sys.path), list(sys.argv)
        made.modules = set(sys.modules)
        made.directory = os.getcwd()
        return made

    path: list[str]
    arguments: list[str]
    modules: set[str]
    directory: str

    def restore(self) -> None:
        lib = importlib.import_module("settings_for_fuzz")
        os.chdir(self.directory)
        for entry in Path(self.directory).iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        Path("f").write_text("some text")
        np.save("a.npy", [1.0])
        Path("sub").mkdir()
        sys.path[:], sys.argv[:] = self.path, self.arguments
        for name in {*sys.modules} - self.modules:
            if name.startswith(("lib_of_", "mod")):
                del sys.modules[name]
        lib.restore()
        os.environ.pop("FUZZ", None)
        os.environ["TZ"] = "UTC"
        time.tzset()
        os.umask(0o022)
        self._restore_interpreter()
        self._restore_numbers()

    def _restore_interpreter(self) -> None:
        for owner, name, value in _REPLACED:
            setattr(owner, name, value)
        for name in [name for name in vars(builtins) if name.startswith("ADDED")]:
            delattr(builtins, name)
        copyreg.dispatch_table[complex] = _COMPLEX
        tracemalloc.stop()
        faulthandler.disable()
        gc.unfreeze()
        for number in (signal.SIGUSR2, signal.SIGURG):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGWINCH,))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        sys.setrecursionlimit(1000)
        sys.setswitchinterval(0.005)
        sys.set_int_max_str_digits(4300)
        gc.enable()
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        logging.getLogger("l").setLevel(logging.NOTSET)
        logging.getLogger("l").disabled = False

    def _restore_numbers(self) -> None:
        random.seed(0)
        np.random.seed(0)
        mg.manual_seed(0)
        mg.set_default_dtype(mg.float32)
        mg.set_printoptions(profile="default")
        decimal.setcontext(decimal.Context(prec=28, traps=[]))
        np.seterr(divide="warn", over="warn", under="ignore", invalid="warn")
        np.setbufsize(8192)
        np.set_printoptions(precision=8, formatter=None)
        np.seterrcall(None)
        decimal.DefaultContext.prec = 28
        mg.set_float32_matmul_precision("highest")
        special.seterr(all="ignore")
        locale.setlocale(locale.LC_ALL, "C")


if __name__ == "__main__":
    main()
