"""The command ``mpgrad``: reads its arguments and hands over to ``run``, ``replay``, ``doctor``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import mpgrad
from mpgrad.base import config

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (default: ``sys.argv``) and return the exit code."""
    parser = _parser()
    given = sys.argv[1:] if arguments is None else arguments
    if not given:
        parser.print_help()
        return 0
    options = parser.parse_args(given)
    code: int = options.perform(options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mpgrad",
        description="Autograd on NumPy whose backward pass runs in worker processes.",
    )
    parser.add_argument("--version", action="version", version=f"mpgrad {mpgrad.__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)

    run = commands.add_parser("run", help="run a script whose backward passes use worker processes")
    run.add_argument(
        "--cpu-workers",
        type=_argument(config.parse_worker_count),
        metavar="N",
        help="CPU worker processes (default: MPGRAD_CPU_WORKERS, else as many as there are CPUs)",
    )
    run.add_argument(
        "--gpus",
        type=_argument(config.parse_gpus),
        metavar="all|0,1|none",
        help="GPUs to use (default: MPGRAD_GPUS, else auto)",
    )
    run.add_argument(
        "--profile",
        metavar="FILE",
        help="profile the whole script, and write a page about it to FILE (see mg.profiler.report)",
    )
    run.add_argument("script", help="a Python file")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script gets as sys.argv")
    run.set_defaults(perform=_run)

    compat = commands.add_parser("compat", help="run programs for PyTorch on mpgrad")
    compat_commands = compat.add_subparsers(metavar="command", required=True)
    compat_run = compat_commands.add_parser(
        "run", help="run a script in which `import torch` gives mpgrad"
    )
    compat_run.add_argument("script", help="a Python file")
    compat_run.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="what the script gets as sys.argv"
    )
    compat_run.set_defaults(perform=_run_compat)

    replay = commands.add_parser(
        "replay", help="run the journal of a process again, and compare what its core decided"
    )
    replay.add_argument("file", help="a .journal file; the error message that led here names it")
    replay.add_argument(
        "--last", type=int, default=20, metavar="N", help="events to print (default: 20; 0: none)"
    )
    replay.set_defaults(perform=_replay)

    top = commands.add_parser("top", help="show what the engines of this user do")
    top.add_argument("--once", action="store_true", help="look once, and end")
    top.add_argument("--json", action="store_true", help="a JSON document for each look")
    top.set_defaults(perform=_top)

    doctor = commands.add_parser(
        "doctor", help="say whether worker processes can run here, and measure how fast"
    )
    doctor.add_argument("--json", action="store_true", help="as JSON, for programs and bug reports")
    doctor.set_defaults(perform=_doctor)
    return parser


def _argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """``parse`` for argparse, which drops a ValueError's text but shows an ArgumentTypeError's."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None

    return convert


def _doctor(options: argparse.Namespace) -> int:
    from mpgrad.launch import doctor

    return doctor.main(as_json=options.json)


def _top(options: argparse.Namespace) -> int:
    from mpgrad.launch import top_command

    return top_command.main(once=options.once, as_json=options.json)


def _run_compat(options: argparse.Namespace) -> int:
    from mpgrad.launch import script

    return script.launch_for_torch(options.script, options.arguments)


def _replay(options: argparse.Namespace) -> int:
    from mpgrad.launch import replay_command as replay

    return replay.main(options.file, options.last)


def _run(options: argparse.Namespace) -> int:
    from mpgrad.launch import script

    return script.launch(
        options.script,
        options.arguments,
        cpu_workers=options.cpu_workers,
        gpus=options.gpus,
        profile=options.profile,
    )


if __name__ == "__main__":
    sys.exit(main())
