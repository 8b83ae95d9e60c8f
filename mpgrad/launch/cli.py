"""The command ``mpgrad``: reads its arguments and hands over to ``run``, ``top``, ``doctor``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import mpgrad
from mpgrad.base import config
from mpgrad.distributed.launch.rank_options import (
    add_rank_options,
    argument,
    asks_for_ranks,
    others_of,
    processes_of,
    ranks_of,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (default: ``sys.argv``) and return the exit code."""
    parser = command_line()
    given = sys.argv[1:] if arguments is None else arguments
    if not given:
        parser.print_help()
        return 0
    options = parser.parse_args(given)
    code: int = options.perform(options)
    return code


def command_line() -> argparse.ArgumentParser:
    """The parser; ``shtab mpgrad.launch.cli.command_line`` makes completions for shells of it."""
    parser = argparse.ArgumentParser(
        prog="mpgrad",
        description="Autograd whose slow parts run forward and backward on all cores, in worker "
        "processes.",
    )
    parser.add_argument("--version", action="version", version=f"mpgrad {mpgrad.__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)

    run = commands.add_parser("run", help="run a script with worker processes")
    run.add_argument(
        "--cpu-workers",
        type=argument(config.parse_worker_count),
        metavar="N",
        help="CPU worker processes (default: MPGRAD_CPU_WORKERS, else as many as there are CPUs)",
    )
    run.add_argument(
        "--gpus",
        type=argument(config.parse_gpus),
        metavar="all|0,1|none",
        help="GPUs to use (default: MPGRAD_GPUS, else auto)",
    )
    run.add_argument(
        "--pin",
        choices=config.PINS,
        help="what each CPU worker is bound to: a core of its own, the processors of a NUMA node, "
        "or nothing (default: MPGRAD_PIN, else none)",
    )
    run.add_argument(
        "--log-dir",
        metavar="DIR",
        help="write there: the table of workers, and of several processes what each one prints",
    )
    run.add_argument(
        "--profile",
        metavar="FILE",
        help="profile the whole script, and write a page about it to FILE (see mg.profiler.report)",
    )
    run.add_argument(
        "--pdb",
        action="store_true",
        help="start pdb where an exception that nobody catches was raised; a Function that fails "
        "on a worker is run again here",
    )
    run.add_argument("--serve", action=_NoServer, nargs=0, help=argparse.SUPPRESS)
    add_rank_options(run)
    run.add_argument(
        "-m", "--module", action="store_true", help="the script is a module, as for python -m"
    )
    _add_script(run, "a Python file; with -m the name of a module")
    run.set_defaults(perform=_run)

    compat = commands.add_parser("compat", help="run programs for PyTorch on mpgrad")
    compat_commands = compat.add_subparsers(metavar="command", required=True)
    compat_run = compat_commands.add_parser(
        "run", help="run a script in which `import torch` gives mpgrad"
    )
    _add_script(compat_run, "a Python file")
    compat_run.set_defaults(perform=_run_compat)

    _add_questions(commands)
    return parser


def _add_questions(commands: Any) -> None:
    """The commands that run no script: what happened, what happens, what could."""
    top = commands.add_parser("top", help="show what the engines of this user do")
    top.add_argument("--once", action="store_true", help="look once, and end")
    top.add_argument("--json", action="store_true", help="a JSON document for each look")
    top.set_defaults(perform=_top)

    doctor = commands.add_parser(
        "doctor", help="say whether worker processes can run here, and measure how fast"
    )
    doctor.add_argument("--json", action="store_true", help="as JSON, for programs and bug reports")
    doctor.set_defaults(perform=_doctor)


class _NoServer(argparse.Action):
    """``--serve``: an engine serves one program."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.error(
            "there is no --serve: an engine serves one program. Give each program an engine and a "
            "share of the cores: mpgrad run --cpu-workers N script.py"
        )


#: What shells complete with, for shtab.
_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}


def _add_script(command: argparse.ArgumentParser, words: str) -> None:
    """What to run, and everything behind it."""
    script: Any = command.add_argument("script", help=words)
    script.complete = _FILES
    command.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="what the script gets as sys.argv"
    )


def _doctor(options: argparse.Namespace) -> int:
    from mpgrad.launch import doctor

    return doctor.main(as_json=options.json)


def _top(options: argparse.Namespace) -> int:
    from mpgrad.launch import top_command

    return top_command.main(once=options.once, as_json=options.json)


def _run_compat(options: argparse.Namespace) -> int:
    from mpgrad.compat import script

    return script.launch_for_torch(options.script, options.arguments)


def _run(options: argparse.Namespace) -> int:
    from mpgrad.compat import script

    chosen = {
        "is_module": options.module,
        "cpu_workers": options.cpu_workers,
        "gpus": options.gpus,
        "pin": options.pin,
        "log_dir": options.log_dir,
    }
    if options.nproc_per_node is None and not asks_for_ranks(options):
        return script.launch(
            options.script,
            options.arguments,
            profile=options.profile,
            debugger=options.pdb,
            **chosen,
        )
    for name in ("profile", "pdb"):
        if getattr(options, name):
            return script.refusal(f"--{name} is for one process: leave out what asks for ranks")
    if options.address is not None:
        return _run_on_ray(options)
    from mpgrad.distributed.launch.ranks import launch_ranks

    try:
        ranks = ranks_of(options, processes_of(options.nproc_per_node or 1))
    except ValueError as error:
        return script.refusal(str(error))
    return launch_ranks(options.script, options.arguments, ranks, **chosen)


def _run_on_ray(options: argparse.Namespace) -> int:
    from mpgrad.compat import script

    if options.nnodes.least < options.nnodes.most or isinstance(options.nproc_per_node, str):
        return script.refusal("--address needs numbers: --nnodes N --nproc-per-node N")
    try:
        others = others_of(options)
    except (ValueError, OSError) as error:
        return script.refusal(str(error))
    try:
        from mpgrad.distributed.launch.ray_cluster import launch_on_ray
    except ImportError as error:
        if error.name != "ray":
            raise
        return script.refusal(
            "--address needs Ray, which is not installed: pip install mpgrad[ray]"
        )
    arguments = []
    for name in ("cpu_workers", "gpus", "pin", "log_dir", "max_restarts"):
        value = getattr(options, name)
        if value is not None:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            arguments += [f"--{name.replace('_', '-')}", text]
    arguments += [*(["-m"] if options.module else []), options.script, *options.arguments]
    per_node: int = options.nproc_per_node or 1
    cpus = per_node * (options.cpu_workers or 1)
    return launch_on_ray(
        options.address, arguments, options.nnodes.most, per_node, cpus, others=others
    )


if __name__ == "__main__":
    sys.exit(main())
