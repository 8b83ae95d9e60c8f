"""WorkerEnvironment: what a worker takes over from the client: user code finds its world."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import re
import sys
import warnings
from typing import Any, NamedTuple


class WorkerEnvironment(NamedTuple):
    """Import path, working directory, warning filters, logging level and NumPy's error state."""

    path: tuple[str, ...]
    directory: str
    python_path: str | None
    filters: tuple[tuple[str, str | None, type[Warning], str | None, int], ...]
    log_level: int
    numpy_errors: dict[str, Any]


def capture_environment() -> bytes:
    """This process's environment, pickled (it travels from client to worker only)."""
    import numpy as np

    environment = WorkerEnvironment(
        path=tuple(entry if entry else os.getcwd() for entry in sys.path),
        directory=os.getcwd(),
        python_path=os.environ.get("PYTHONPATH"),
        filters=tuple(
            (action, _pattern(message), category, _pattern(module), line)
            for action, message, category, module, line in warnings.filters
            if isinstance(category, type) and _is_importable(category)
        ),
        log_level=logging.getLogger().getEffectiveLevel(),
        numpy_errors=dict(np.geterr()),
    )
    return pickle.dumps(environment)


def restore_environment(data: bytes) -> WorkerEnvironment:
    """Take over the client's import path, directory and warning filters; the rest is returned."""
    environment: WorkerEnvironment = pickle.loads(data)
    sys.path[:] = environment.path
    if environment.python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = environment.python_path
    # The directory may have been removed meanwhile; what needs it will say so.
    with contextlib.suppress(OSError):
        os.chdir(environment.directory)
    warnings.resetwarnings()
    for action, message, category, module, line in reversed(environment.filters):
        warnings.filterwarnings(
            action,  # type: ignore[arg-type]
            message or "",
            category,
            module or "",
            line,
        )
    return environment


def _pattern(pattern: Any) -> str | None:
    return pattern.pattern if isinstance(pattern, re.Pattern) else pattern


def _is_importable(category: type[Warning]) -> bool:
    """Classes of ``__main__`` do not exist in a worker."""
    return category.__module__ != "__main__" and "<locals>" not in category.__qualname__
