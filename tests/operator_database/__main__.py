"""python -m tests.operator_database: what mpgrad makes of PyTorch's database of operators.

``--write`` keeps it, with what PyTorch gives, and writes docs/evidence/operators.md. Exit status 0:
nothing differs that has no reason in left.toml.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

import mpgrad
from tests.operator_database import database, page, recorded
from tests.operator_database.verdict import judge


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.operator_database", description=__doc__)
    parser.add_argument("names", nargs="*", help="operators (default: all)")
    parser.add_argument("--write", action="store_true", help="keep what was found of these")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    verdicts, calls, left, lines = [], {}, page.reasons(), []
    for name, entries in database.entries().items():
        if options.names and name not in options.names:
            continue
        print(name, end=" ", flush=True, file=sys.stderr)
        torch.manual_seed(0)
        verdict = judge(mpgrad, torch, name, entries)
        verdicts.append(verdict)
        found = page.unexpected([verdict], left)
        print(*found, sep="\n", end="\n" if found else "", flush=True)
        lines += found
        if verdict.is_here and options.write:
            torch.manual_seed(0)
            calls[name] = list(recorded.calls_of(torch, name, entries))
    if options.write:
        recorded.write(verdicts, calls, keep=bool(options.names))
        page.DOCUMENT.write_text(page.text(recorded.read()[0], torch.__version__.partition("+")[0]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
