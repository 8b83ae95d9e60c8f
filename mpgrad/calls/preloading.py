"""preloaded(): the modules that workers have loaded when they start.

Otherwise each of them would load these for its first task, while the caller waits.
"""

from __future__ import annotations

import sys
import types

from mpgrad.calls.custom_functions.process_state import is_installed_namespace
from mpgrad.wire.code_pickles import NAMED_MODULES

#: The modules of array libraries that this process has loaded.
LIBRARIES: list[str] = []
#: Their imports leave nothing that each worker must have for itself, as others do: generators of
#: random numbers, open files, locks, children, names of temporary files.
_WITHOUT_STATE = sys.stdlib_module_names | {"numpy", "scipy"}


def preloaded() -> tuple[str, ...]:
    """For workers that start now: the modules of array libraries, and those of Python, NumPy and
    SciPy that packed functions name, in the order in which this process has loaded them."""
    named = [
        name
        for name, module in list(sys.modules.items())
        if name in NAMED_MODULES
        and name.partition(".")[0] in _WITHOUT_STATE
        and isinstance(module, types.ModuleType)
        and is_installed_namespace(vars(module))
    ]
    return tuple(dict.fromkeys([*LIBRARIES, *named]))
