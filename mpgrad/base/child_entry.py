"""begin(): the first code of mpgrad in a child, see ``interpreter``."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import mpgrad
from mpgrad.base.exits import end_child
from mpgrad.base.interpreter import MARK, is_of_python


def begin(
    package: str, file: str | None, version: str, variables: dict[str, str], setup: bytes
) -> None:
    """Be like the parent in what is left, and call ``main`` of the package.

    Args:
        package: of mpgrad.
        file, version: the parent's mpgrad.
        variables: of the parent's environment, as far as Python reads them.
        setup: for ``main``.
    """
    os.environ.pop(MARK, None)
    for name in [name for name in os.environ if is_of_python(name)]:
        del os.environ[name]
    os.environ.update(variables)
    _require_same(file, version)
    import_module(f"{package}.__main__").main(setup)
    end_child()


def _require_same(file: str | None, version: str) -> None:
    """End this process unless it has the parent's mpgrad; what it says is shown there."""
    here = os.path.abspath(str(mpgrad.__file__))
    if mpgrad.__version__ != version:
        sys.exit(
            f"it would run mpgrad {mpgrad.__version__} ({here}), and the program runs mpgrad "
            f"{version} ({file or 'frozen'}); start the program again if it was updated meanwhile"
        )
    if file is not None and here != file and not _is_same_file(here, file):
        sys.exit(f"it would run the mpgrad of {here}, and the program runs that of {file}")


def _is_same_file(here: str, there: str) -> bool:
    try:
        return os.path.samefile(here, there)
    except OSError:
        return False
