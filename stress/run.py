"""The common form of stress runs: a name, options, and a verdict in one line."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Verdict(NamedTuple):
    """The result of a run."""

    passed: bool
    #: Its figures, in one line.
    figures: str


class Run(NamedTuple):
    """One entry of ``scripts/stress``."""

    name: str
    #: One line for ``--help``.
    purpose: str
    add_options: Callable[[argparse.ArgumentParser], None]
    perform: Callable[[argparse.Namespace], Verdict]


def count(text: str) -> int:
    """A number of at least 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return int(text)


def minutes(text: str) -> float:
    """A positive number of minutes, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a positive number of minutes")
    return value


def seed_of(options: argparse.Namespace) -> int:
    """``--seed``, or a drawn one; the caller prints it."""
    return random.SystemRandom().randrange(10**6) if options.seed is None else int(options.seed)


def progress_bar() -> Progress:
    """Shows the progress of a run on stderr, and vanishes at its end."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
