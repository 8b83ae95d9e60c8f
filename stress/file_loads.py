"""``python -m stress.file_loads SEED FIRST NUMBER``: loads files of ``damaged_files``.

It uses what comes of them as a program would. It prints a line before each file, and one about it.
"""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import re
import resource
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import mpgrad as mg
from mpgrad.data import read_idx
from stress.damaged_files import damaged, honest

#: Bytes that a file may take: those of ``damaged_files`` are short.
MEMORY_MAX = 1 << 29
#: Seconds of processor time for one file.
STUCK_S = 20.0
#: The objects of a file that are used.
USED_MAX = 300


def main() -> None:
    seed, first, number = map(int, sys.argv[1:])
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "idx")
        for data in honest():  # imports what it needs
            _outcome(data, path)
        _limit()
        for at in range(first, first + number):
            print(at, flush=True)
            print(_said(damaged(seed, at), path), flush=True)


def _limit() -> None:
    used = re.search(r"VmData:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert used is not None
    memory = 1024 * int(used[1]) + MEMORY_MAX
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _said(data: bytes, path: Path) -> str:
    # Its signal ends the process, in whatever code it is.
    signal.setitimer(signal.ITIMER_VIRTUAL, STUCK_S)
    try:
        return _outcome(data, path)
    except BaseException as error:  # every other error is a fault
        return f"fault: {type(error).__name__}: {ascii(str(error))[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _outcome(data: bytes, path: Path) -> str:
    if data[:2] in (b"\0\0", b"\x1f\x8b"):
        path.write_bytes(data)
        with contextlib.suppress(ValueError):
            read_idx(path)
    try:
        value = mg.load(io.BytesIO(data))
    except pickle.UnpicklingError:
        return "refused"
    except RuntimeError as error:
        if "which is not here" not in str(error):
            raise
        return "refused"
    _use(value)
    return "loaded"


def _use(value: Any) -> None:
    """Read all elements, save it, and give it to a Module and an optimizer."""
    for part in _parts(value):
        if isinstance(part, np.dtype):
            repr(np.zeros(2, part))
        elif isinstance(part, np.ndarray | np.generic):
            _read(np.asarray(part))
            repr(part)
        elif isinstance(part, mg.Tensor):
            _read(part.detach().numpy())
            repr(part)
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                np.asarray(part)
    model = mg.nn.Linear(3, 2)
    optimizer = mg.optim.AdamW(model.parameters())
    for use in (
        model.load_state_dict,
        optimizer.load_state_dict,
        hash,
        copy.deepcopy,
        np.asarray,
        lambda value: mg.load(_saved(value)),
    ):
        try:
            use(value)
        except (MemoryError, SystemError):
            raise
        except Exception:  # whatever fits it not
            pass


def _saved(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    mg.save(value, file)
    file.seek(0)
    return file


def _read(array: np.ndarray[Any, Any]) -> None:
    array.tolist()
    array.tobytes()
    np.sort(array, axis=None)
    if array.dtype.kind == "b":
        np.arange(array.size).reshape(array.shape)[array]


def _parts(value: Any) -> list[Any]:
    """All that is inside ``value``, to a limit."""
    left, parts = [value], list[Any]()
    while left and len(parts) < USED_MAX:
        part = left.pop()
        parts.append(part)
        if isinstance(part, dict):
            left += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple | set | frozenset):
            left += part
        if hasattr(part, "__dict__") and not isinstance(part, type):
            left += vars(part).values()
    return parts


if __name__ == "__main__":
    main()
