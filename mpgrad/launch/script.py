"""``mpgrad run``: a user's script, run as ``__main__`` with an engine as the current one."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import mpgrad
from mpgrad.base import config
from mpgrad.compat.stand_in import install
from mpgrad.errors import RendezvousTimeout

#: What a shell reports for a program that Ctrl-C ended: 128 + SIGINT.
INTERRUPTED = 130
#: The command line was wrong, as argparse has it, or not all ranks came.
MISUSED = 2


def launch(
    script: str,
    arguments: Sequence[str],
    *,
    cpu_workers: int | None = None,
    gpus: str | tuple[int, ...] | None = None,
    profile: str | None = None,
    debugger: bool = False,
) -> int:
    """Start an engine in process mode, run ``script``, close the engine.

    Args:
        script: path of a Python file.
        arguments: the script's ``sys.argv[1:]``.
        cpu_workers: number of CPU workers; None leaves it to the engine.
        gpus: which GPUs; None leaves it to the engine.
        profile: the file for a page about what ran; None: none.
        debugger: whether pdb starts where an exception that nobody catches was raised, also where
            that was in a Function on a worker, which is run again here.

    Returns:
        The exit code that ``python script.py`` would have had.
    """
    unreadable = why_unreadable(script)
    if unreadable:
        return refusal(unreadable)
    chosen: dict[str, Any] = {
        name: value
        for name, value in (("cpu_workers", cpu_workers), ("gpus", gpus))
        if value is not None
    }
    if debugger:
        os.environ[config.POST_MORTEM.name] = "1"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(mpgrad.Engine(mode="process", **chosen))
        except (ValueError, RuntimeError) as error:
            return refusal(str(error))
        if profile is not None:
            unwritable = _why_unwritable(profile)
            if unwritable:
                return refusal(unwritable)
            prof = mpgrad.profiler.profile()
            stack.callback(_write_report, profile, prof)
            prof.start()
        return run(script, arguments, debugger=debugger)


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


def run(script: str, arguments: Sequence[str], *, debugger: bool = False) -> int:
    """Run ``script`` as ``__main__`` in this process, which is the script's from here on.

    Args:
        script, arguments: the file, and its ``sys.argv[1:]``.
        debugger: whether pdb follows an exception that nobody catches.

    Returns:
        Its exit code.
    """
    sys.argv[:] = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as request:
        return _exit_code(request.code)
    except BaseException as error:
        trace = _without_our_frames(error.__traceback__, script)
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


def _without_our_frames(trace: TracebackType | None, script: str) -> TracebackType | None:
    """The traceback from the script's first frame on; None if it never got there (SyntaxError)."""
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return trace


def why_unreadable(script: str) -> str | None:
    """Why there is no such file to run; None if there is."""
    try:
        with open(script, "rb"):
            return None
    except OSError as error:
        return f"cannot read {script!r}: {error.strerror}"


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
