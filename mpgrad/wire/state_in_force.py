"""state_in_force(): the captured state of a call for its time; changes by user code are undone."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from mpgrad.base.dtype import default_float, set_default_dtype
from mpgrad.base.environ import changes_of_environment, current_environment, set_environment
from mpgrad.base.print_options import OPTIONS
from mpgrad.wire.captured_state import (
    CapturedState,
    all_numpy_errors,
    apply_state,
    capture_state,
    changed_numpy_errors,
)
from mpgrad.wire.environment import KeptArguments, current_arguments, current_directory

#: The beginnings of environment variables that libraries set for themselves when they are first
#: used: PyTorch says where it has its caches.
SET_BY_LIBRARIES = ("TORCHINDUCTOR_", "TRITON_")


@contextmanager
def state_in_force(captured: CapturedState | None) -> Iterator[Callable[[], str]]:
    """Have the captured state of a call, and afterwards that of before.

    Where other threads of the user's run, nobody can tell whose a change is: then what a call has
    changed is left alone. Run it in a copy of the context, which has the context variables: errors
    and print options of NumPy, decimal numbers.

    Args:
        captured: the state; None: as it is.

    Yields:
        A function that names what user code has changed since then, of the working directory and
        ``os.environ``; empty: nothing.
    """
    before, arguments = _Outside.now(), KeptArguments()
    is_other = captured is not None and capture_state().data != captured.data
    try:
        if captured is not None:
            if is_other:
                apply_state(captured.data)
            if changed_numpy_errors(np.geterr()) != captured.numpy_errors:
                np.seterr(**all_numpy_errors(captured.numpy_errors))  # type: ignore[arg-type]
        if "decimal" in sys.modules:  # a variable of the context whose value can be changed
            import decimal

            decimal.setcontext(decimal.getcontext().copy())
        start = _Outside.now() if is_other else before
        yield lambda: _changed(start)
    finally:
        now = _Outside.now()
        if now != before and (is_other or _is_alone()):
            before.restore(now)
            if now.program_arguments != before.program_arguments:
                arguments.restore()


class _Outside(NamedTuple):
    """What is not in the context; the fields are those of ``captured_state``."""

    directory: bytes | None
    environment: dict[bytes, bytes]
    program_arguments: list[str] | None
    recursion_limit: int
    int_digits: int
    locale: str | None
    #: NumPy 2.0 and 2.1 have them once for each process.
    print_options: Any
    tensor_print_options: dict[str, Any]
    default_dtype: Any
    special_errors: dict[str, str] | None
    filters: list[Any]

    @classmethod
    def now(cls) -> _Outside:
        """What there is."""
        modules = sys.modules
        locale, special = modules.get("locale"), modules.get("scipy.special")
        return cls(
            current_directory(),
            current_environment(),
            current_arguments(),
            sys.getrecursionlimit(),
            sys.get_int_max_str_digits(),
            None if locale is None else locale.setlocale(locale.LC_ALL),
            np.get_printoptions(),
            dict(vars(OPTIONS)),
            default_float(),
            None if special is None else special.geterr(),
            list(warnings.filters),
        )

    def restore(self, now: _Outside) -> None:
        """Have it again, where ``now`` is another."""
        if self.directory is not None and now.directory != self.directory:
            os.chdir(self.directory)
        set_environment(self.environment)
        sys.setrecursionlimit(self.recursion_limit)
        sys.set_int_max_str_digits(self.int_digits)
        if self.locale is not None and now.locale != self.locale:
            import locale

            locale.setlocale(locale.LC_ALL, self.locale)
        if now.print_options != self.print_options:
            np.set_printoptions(**self.print_options)
        vars(OPTIONS).update(self.tensor_print_options)
        set_default_dtype(self.default_dtype)
        if self.special_errors is not None and now.special_errors != self.special_errors:
            from scipy import special

            special.seterr(**self.special_errors)
        if now.filters != self.filters:
            warnings.resetwarnings()
            warnings.filters.extend(self.filters)  # type: ignore[attr-defined]


def _is_alone() -> bool:
    """Whether no other thread of the user's runs in this process."""
    current = threading.current_thread()
    return all(one is current or one.name.startswith("mpgrad-") for one in threading.enumerate())


def _changed(before: _Outside) -> str:
    if current_directory() == before.directory and current_environment() == before.environment:
        return ""
    if not _is_alone():
        return ""
    if current_directory() != before.directory:
        return "the working directory"
    names = map(os.fsdecode, changes_of_environment(before.environment, current_environment()))
    users = next((name for name in names if not name.startswith(SET_BY_LIBRARIES)), None)
    return "" if users is None else f"os.environ[{users!r}]"
