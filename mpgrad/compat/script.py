"""``mpgrad run``: a user's script, run as ``__main__`` with an engine as the current one."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import mpgrad
from mpgrad.compat.stand_in import install
from mpgrad.engine.workers_table import table_of_workers
from mpgrad.errors import RendezvousTimeout

#: What a shell reports for a program that Ctrl-C ended: 128 + SIGINT.
INTERRUPTED = 130
#: The command line was wrong, as argparse has it, or not all ranks came.
MISUSED = 2


def launch(
    script: str,
    arguments: Sequence[str],
    *,
    is_module: bool = False,
    cpu_workers: int | None = None,
    gpus: str | tuple[int, ...] | None = None,
    pin: str | None = None,
    profile: str | None = None,
    log_dir: str | None = None,
    debugger: bool = False,
) -> int:
    """Start an engine in process mode, show its workers, run ``script``, close the engine.

    Args:
        script: path of a Python file, or the name of a module.
        arguments: the script's ``sys.argv[1:]``.
        is_module: ``script`` is the name of a module.
        cpu_workers: number of CPU workers; None leaves it to the engine.
        gpus: which GPUs; None leaves it to the engine.
        pin: what workers are bound to; None leaves it to the engine.
        profile: the file for a page about what ran; None: none.
        log_dir: the directory for the table of workers.
        debugger: whether pdb starts where an exception that nobody catches was raised.

    Returns:
        The exit code that ``python script.py`` would have had.
    """
    refused = why_unreadable(script, is_module) or prepare_log_dir(log_dir)
    if refused:
        return refusal(refused)
    arguments_of_engine = {"cpu_workers": cpu_workers, "gpus": gpus, "pin": pin}
    chosen: dict[str, Any] = {k: v for k, v in arguments_of_engine.items() if v is not None}
    with contextlib.ExitStack() as stack:
        started = time.perf_counter()
        try:
            engine = stack.enter_context(mpgrad.Engine(mode="process", **chosen))
        except (ValueError, RuntimeError) as error:
            return refusal(str(error))
        took_s = time.perf_counter() - started
        table = table_of_workers(engine, took_s, asks_for_gpus=gpus == "all")
        print(table, file=sys.stderr, flush=True)
        if log_dir is not None:
            Path(log_dir, "workers.txt").write_text(table + "\n")
        if profile is not None:
            unwritable = _why_unwritable(profile)
            if unwritable:
                return refusal(unwritable)
            prof = mpgrad.profiler.profile()
            stack.callback(_write_report, profile, prof)
            prof.start()
        return run(script, arguments, is_module, debugger=debugger)


def _write_report(path: str, prof: mpgrad.profiler.profile) -> None:
    prof.stop()
    mpgrad.profiler.report(path, prof)
    print(f"mpgrad run: the profile is in {path}", file=sys.stderr)


def launch_for_torch(script: str, arguments: Sequence[str]) -> int:
    """Run ``script``, in which ``import torch`` gives mpgrad with its default engine.

    Returns:
        The exit code that ``python script.py`` would have had.
    """
    unreadable = why_unreadable(script)
    if unreadable:
        return refusal(unreadable)
    install()
    return run(script, arguments)


def run(
    script: str, arguments: Sequence[str], is_module: bool = False, *, debugger: bool = False
) -> int:
    """Run ``script`` as ``__main__`` in this process, which is the script's from here on.

    Args:
        script: path of a Python file, or the name of a module.
        arguments: its ``sys.argv[1:]``.
        is_module: ``script`` is the name of a module, found as ``python -m`` finds it.
        debugger: whether pdb follows an exception that nobody catches.

    Returns:
        Its exit code.
    """
    sys.argv[:] = [script, *arguments]
    sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.realpath(script)))
    file = _file_of(script) if is_module else script
    try:
        if is_module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as request:
        return _exit_code(request.code)
    except BaseException as error:
        trace = _without_our_frames(error.__traceback__, file)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if debugger and trace is not None and isinstance(error, Exception):
            import pdb  # imported here: nothing else needs it

            pdb.post_mortem(trace)
        if isinstance(error, RendezvousTimeout):
            return MISUSED
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _exit_code(code: object) -> int:
    """What ``sys.exit(code)`` means: None is 0, a text goes to stderr and is 1."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _without_our_frames(trace: TracebackType | None, script: str | None) -> TracebackType | None:
    """The traceback from the script's first frame on; None if it never got there (SyntaxError)."""
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return trace


def why_unreadable(script: str, is_module: bool = False) -> str | None:
    """Why there is no such file or module to run; None if there is."""
    if is_module:
        return None if _file_of(script) else f"there is no module {script!r} to run"
    try:
        with open(script, "rb"):
            return None
    except OSError as error:
        return f"cannot read {script!r}: {error.strerror}"


def _file_of(module: str) -> str | None:
    """The file that ``python -m module`` runs; None if there is none."""
    with contextlib.ExitStack() as stack:
        if "" not in sys.path and os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
            stack.callback(sys.path.remove, os.getcwd())
        try:
            found = importlib.util.find_spec(module)
            if found is not None and found.submodule_search_locations is not None:
                found = importlib.util.find_spec(f"{module}.__main__")
        except (ImportError, ValueError):
            return None
    return None if found is None else found.origin


def prepare_log_dir(path: str | None) -> str | None:
    """Make the directory; why not, if it cannot be."""
    if path is None:
        return None
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        return f"cannot make the directory {path!r}: {error.strerror}"
    return None


def _why_unwritable(path: str) -> str | None:
    try:
        with open(path, "ab"):
            return None
    except OSError as error:
        return f"cannot write {path!r}: {error.strerror}"


def refusal(message: str) -> int:
    """Print why nothing runs; the exit code."""
    print(f"mpgrad run: {message}", file=sys.stderr)
    return MISUSED
