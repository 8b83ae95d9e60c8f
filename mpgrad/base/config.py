"""Every setting that mpgrad reads from the environment, in one table; see ``docs/settings.md``.

An argument of ``Engine`` overrides the variable; the variable overrides the default. Values are
read at each use, so that a test or a notebook may change them.
``python -m mpgrad.base.config`` prints the table as Markdown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

ENGINE_MODES = ("auto", "local", "process")
CHECKS = ("off", "sample", "all", "bytes")
PINS = ("none", "cores", "nodes")
TRACEBACKS = ("short", "full")
CUPY = "mpgrad.arrays.cuda.cuda_cupy:CupyDriver"


class Setting(NamedTuple, Generic[T]):
    """One environment variable.

    Attributes:
        name: the variable, ``MPGRAD_...``.
        default: the value while the variable is unset or empty.
        parse: converts text to a value; raises ValueError with a message that says what is allowed.
        allowed: the same for the table of settings.
        help: its effect.
        default_text: the default in the table.
    """

    name: str
    default: T
    parse: Callable[[str], T]
    allowed: str
    help: str
    default_text: str

    def get(self) -> T:
        """The current value.

        Raises:
            ValueError: the value of the variable is not allowed.
        """
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise ValueError(f"{self.name}={text!r}: {error}") from None


def parse_engine_mode(text: str) -> str:
    """``auto``, ``local`` or ``process``."""
    mode = text.lower()
    if mode not in ENGINE_MODES:
        raise ValueError(f"expected one of {', '.join(ENGINE_MODES)}")
    return mode


def parse_worker_count(text: str) -> int:
    """A number of worker processes, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("expected a whole number of at least 1")
    return int(text)


def parse_gpus(text: str) -> str | tuple[int, ...]:
    """``auto``, ``all``, ``none``, or device numbers as in ``0,2``."""
    word = text.strip().lower()
    if word in ("auto", "all", "none"):
        return word
    if re.fullmatch(r"\d+(\s*,\s*\d+)*", word) is None:
        raise ValueError("expected auto, all, none, or device numbers such as 0,1")
    numbers = tuple(int(part) for part in word.split(","))
    if len(set(numbers)) < len(numbers):
        raise ValueError("a device number occurs twice")
    return numbers


def parse_bytes(text: str) -> int:
    """A size in bytes, or with a binary unit: ``4G`` is 4 * 2**30."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError("expected bytes, or a number with a unit K, M, G or T, such as 4G")
    size = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
    if size < 1:
        raise ValueError("expected more than 0 bytes")
    return size


def parse_debug(text: str) -> int:
    """How much to report, 0 to 2."""
    if text not in ("0", "1", "2"):
        raise ValueError("expected 0, 1 or 2")
    return int(text)


def parse_check(text: str) -> str:
    """``off``, ``sample``, ``all`` or ``bytes``."""
    check = text.lower()
    if check not in CHECKS:
        raise ValueError(f"expected one of {', '.join(CHECKS)}")
    return check


def parse_pin(text: str) -> str:
    """``none``, ``cores`` or ``nodes``."""
    pin = text.lower()
    if pin not in PINS:
        raise ValueError(f"expected one of {', '.join(PINS)}")
    return pin


def parse_traceback(text: str) -> str:
    """``short`` or ``full``."""
    traceback = text.lower()
    if traceback not in TRACEBACKS:
        raise ValueError(f"expected one of {', '.join(TRACEBACKS)}")
    return traceback


def parse_switch(text: str) -> bool:
    """``0`` or ``1``."""
    if text not in ("0", "1"):
        raise ValueError("expected 0 or 1")
    return text == "1"


def parse_function(text: str) -> str:
    """``module:function``, for ``pkgutil.resolve_name``."""
    if not re.fullmatch(r"\w+(\.\w+)*:\w+", text):
        raise ValueError("expected module:function, such as package.module:function")
    return text


def parse_cuda_driver(text: str) -> str:
    """``cupy``, or ``module:function``."""
    return CUPY if text.lower() == "cupy" else parse_function(text)


def parse_seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise ValueError("expected a number of seconds above 0")
    return seconds


def parse_path(text: str) -> str:
    """A path; ``~`` is the user's home."""
    return os.path.abspath(os.path.expanduser(text))


ENGINE: Setting[str] = Setting(
    "MPGRAD_ENGINE",
    "auto",
    parse_engine_mode,
    "`auto`, `local`, `process`",
    "Where backward runs: in this process, in worker processes, or where it is faster.",
    "`auto`",
)
CPU_WORKERS: Setting[int | None] = Setting(
    "MPGRAD_CPU_WORKERS",
    None,
    parse_worker_count,
    "a whole number >= 1",
    "The number of CPU worker processes of an engine.",
    "CPU affinity and cgroup quota, shared with the processes that multiprocessing, joblib, "
    "pytest-xdist, gunicorn or torchrun have started beside this one",
)
GPUS: Setting[str | tuple[int, ...]] = Setting(
    "MPGRAD_GPUS",
    "auto",
    parse_gpus,
    "`auto`, `all`, `none`, or numbers such as `0,1`",
    "Which GPUs get a worker process.",
    "`auto`",
)
PIN: Setting[str] = Setting(
    "MPGRAD_PIN",
    "none",
    parse_pin,
    "`none`, `cores`, `nodes`",
    "The binding of each CPU worker: none; a core of its own; the processors of a NUMA node.",
    "`none`",
)
SHM_LIMIT: Setting[int | None] = Setting(
    "MPGRAD_SHM_LIMIT",
    None,
    parse_bytes,
    "bytes, or with a unit: `512M`, `4G`",
    "The maximum number of bytes in a shared-memory arena.",
    "from memory and cgroup limit",
)
BRANCH_LIMIT: Setting[int | None] = Setting(
    "MPGRAD_BRANCH_LIMIT",
    None,
    parse_bytes,
    "bytes, or with a unit: `512M`, `4G`",
    "The bytes that the branches of `parallel_map` may hold in all processes of an engine. Over it "
    "the oldest ones are let go, and made again if they are differentiated.",
    "0.4 of memory and cgroup limit",
)
CHECK: Setting[str] = Setting(
    "MPGRAD_CHECK",
    "sample",
    parse_check,
    "`off`, `sample`, `all`, `bytes`",
    "Which Functions that a worker has run are run again in this process, and must give the same "
    "bits: none; one in 1000, but for those with `run_on`; every one. `bytes` is `sample` with "
    "checksums on what workers publish.",
    "`sample`",
)
PYTHON: Setting[str | None] = Setting(
    "MPGRAD_PYTHON",
    None,
    parse_path,
    "the path of a Python interpreter",
    "The interpreter of the coordinator, the workers and the ranks of `mpgrad run`, where "
    "`sys.executable` is no Python (a frozen application, uWSGI, a program that embeds Python). "
    "It has the same version of Python and of mpgrad.",
    "`sys.executable`",
)
START_TIMEOUT: Setting[float] = Setting(
    "MPGRAD_START_TIMEOUT",
    30.0,
    parse_seconds,
    "seconds above 0",
    "How long a coordinator or worker that starts may do nothing. Seconds in which it uses the "
    "processor do not count.",
    "`30`",
)
DEBUG: Setting[int] = Setting(
    "MPGRAD_DEBUG",
    0,
    parse_debug,
    "`0`, `1`, `2`",
    "The reports of the engine on stderr: none; the mode of each backward and why; every Node.",
    "`0`",
)

TRACEBACK: Setting[str] = Setting(
    "MPGRAD_TRACEBACK",
    "short",
    parse_traceback,
    "`short`, `full`",
    "Whether the traceback of an error in a backward shows the frames of mpgrad itself.",
    "`short`",
)

TEST_HOOK: Setting[str] = Setting(
    "MPGRAD_TEST_HOOK",
    "",
    parse_function,
    "`module:function`",
    "For tests: a function that each process of an engine calls when it starts, to replace its "
    "connection or its worker (`mpgrad/base/hook_for_tests.py`). It must be on `PYTHONPATH`.",
    "none",
)

GROUP_KEY_FILE: Setting[str | None] = Setting(
    "MPGRAD_GROUP_KEY_FILE",
    None,
    parse_path,
    "a file of at least 16 random bytes",
    "The key by which the ranks of a process group know each other, and with which they encrypt. "
    "`mpgrad run` makes one for ranks on one host.",
    "for ranks at `localhost` a file that mpgrad makes: `group-key` in `~/.local/state/mpgrad`",
)

CUDA_DRIVER: Setting[str] = Setting(
    "MPGRAD_CUDA_DRIVER",
    CUPY,
    parse_cuda_driver,
    "`cupy`, `module:function`",
    "The access of each process to its GPUs: a function without arguments that returns a "
    "`mpgrad.arrays.cuda.cuda_driver.CudaDriver`. Every process of an engine imports it.",
    "`cupy`",
)

#: All settings, in the order of the table.
SETTINGS: tuple[Setting[Any], ...] = (
    ENGINE,
    CPU_WORKERS,
    GPUS,
    PIN,
    SHM_LIMIT,
    BRANCH_LIMIT,
    CHECK,
    PYTHON,
    START_TIMEOUT,
    DEBUG,
    TRACEBACK,
    GROUP_KEY_FILE,
    TEST_HOOK,
    CUDA_DRIVER,
)

_NO_JOURNAL = "an internal error prints the last events of the coordinator"
#: Variables that were settings, and why they are none any more.
REMOVED = {"MPGRAD_JOURNAL": _NO_JOURNAL, "MPGRAD_JOURNAL_DIR": _NO_JOURNAL}


def engine_mode() -> str:
    """MPGRAD_ENGINE: ``auto``, ``local`` or ``process``."""
    return ENGINE.get()


def cpu_workers() -> int | None:
    """MPGRAD_CPU_WORKERS, None while unset."""
    return CPU_WORKERS.get()


def gpus() -> str | tuple[int, ...]:
    """MPGRAD_GPUS: ``auto``, ``all``, ``none`` or device numbers."""
    return GPUS.get()


def pin() -> str:
    """MPGRAD_PIN: ``none``, ``cores`` or ``nodes``."""
    return PIN.get()


def shm_limit() -> int | None:
    """MPGRAD_SHM_LIMIT in bytes, None while unset."""
    return SHM_LIMIT.get()


def branch_limit() -> int | None:
    """MPGRAD_BRANCH_LIMIT in bytes, None while unset."""
    return BRANCH_LIMIT.get()


def check() -> str:
    """MPGRAD_CHECK: ``off``, ``sample``, ``all`` or ``bytes``."""
    return CHECK.get()


def python() -> str | None:
    """MPGRAD_PYTHON, None while unset."""
    return PYTHON.get()


def start_timeout_s() -> float:
    """MPGRAD_START_TIMEOUT in seconds."""
    return START_TIMEOUT.get()


def debug() -> int:
    """MPGRAD_DEBUG, 0 to 3."""
    return DEBUG.get()


def traceback() -> str:
    """MPGRAD_TRACEBACK: ``short`` or ``full``."""
    return TRACEBACK.get()


def test_hook() -> str:
    """MPGRAD_TEST_HOOK: ``module:function``, empty while unset."""
    return TEST_HOOK.get()


def cuda_driver() -> str:
    """MPGRAD_CUDA_DRIVER: ``module:function``."""
    return CUDA_DRIVER.get()


def state_directory() -> str:
    """mpgrad's, in the XDG base directory for state."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return parse_path(os.path.join(state, "mpgrad"))


def group_key_file() -> str | None:
    """MPGRAD_GROUP_KEY_FILE, None while unset."""
    return GROUP_KEY_FILE.get()


def misspelt() -> list[str]:
    """A sentence for each variable that looks like a setting or was one, and is none."""
    import difflib  # imported here: ``import mpgrad`` does not need it

    known = [setting.name for setting in SETTINGS]
    found = []
    for name in sorted(os.environ):
        if name.startswith("MPGRAD_") and name not in known:
            found += [f"{name} is no setting any more: {REMOVED[name]}."] if name in REMOVED else []
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            found += [f"{name} is no setting; did you mean {near}?" for near in nearest]
    return found


def settings_table() -> str:
    """``docs/settings.md``."""
    rows = [
        f"| `{setting.name}` | {setting.allowed} | {setting.default_text} | {setting.help} |"
        for setting in SETTINGS
    ]
    return "\n".join(
        [
            "# Settings",
            "",
            "An argument of `mpgrad.Engine` overrides the variable, the variable overrides the",
            "default. A value that is not allowed raises `ValueError` when it is first used. The",
            "first engine names variables that look like one of these and are none.",
            "",
            "| variable | allowed | default | effect |",
            "|---|---|---|---|",
            *rows,
            "",
            "Written by `python -m mpgrad.base.config > docs/settings.md`.",
            "",
        ]
    )


if __name__ == "__main__":
    print(settings_table(), end="")
