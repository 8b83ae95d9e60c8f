"""How children of this process are started, so that each is the same Python with the same mpgrad.

A child gets the flags that this interpreter was started with, Python's own variables as they were
then, and ``sys.path`` as it is now, before it imports anything that is not built in. ``PYTHONPATH``
would not do: its entries come before the standard library, options switch it off, and a colon ends
an entry.
"""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Mapping

import mpgrad
from mpgrad.base import config

#: In the environment of a child until its code begins. A process that still has it was meant to be
#: a child, and runs the application instead.
MARK = "_MPGRAD_CHILD_OF"

#: What ``sys.flags`` says, and the option that says it again. ``-E`` is missing: a child would not
#: read its hash seed either. It gets an environment without Python's variables instead. ``-v``,
#: ``-W`` and ``-b`` are, too: a worker reports every warning, and the filters of the client decide;
#: the coordinator compares ``bytes`` with numbers where a gradient may be either.
_OPTIONS = {
    "dont_write_bytecode": "B",
    "no_site": "S",
    "no_user_site": "s",
    "optimize": "O",
}
#: ``-X`` options that would only print something about the child, and one that is set below.
_NOT_PASSED_ON = ("importtime", "presite", "showrefcount", "utf8")

#: Python's variables that a child gets as they are now, and the one that would only print.
_AS_WANTED = {"PYTHONPATH", "PYTHONUNBUFFERED"}
_NOT_AT_START = {*_AS_WANTED, "PYTHONVERBOSE"}

#: The first code of a child: it knows nothing but built-in modules until ``sys.path`` is right.
#: argv: the name of a package of mpgrad, and the descriptor that ``start_of`` was written to.
_FIRST_CODE = """\
import marshal, sys
with open(int(sys.argv[2]), "rb") as pipe:
    data = pipe.read()
try:
    start, setup = marshal.loads(data)
except EOFError:
    sys.exit(1)  # the parent process died before it had written all
tag, path, file, *origin = marshal.loads(start)
if tag != sys.implementation.cache_tag + sys.abiflags:
    sys.exit(f"it is Python {sys.version.split()[0]}, and the program runs under {tag}")
sys.path[:] = path + [entry for entry in sys.path if entry not in path]
if file and "mpgrad" not in sys.modules:
    from importlib.util import module_from_spec, spec_from_file_location
    spec = spec_from_file_location("mpgrad", file)
    sys.modules["mpgrad"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["mpgrad"])
from mpgrad.base.child_entry import begin
begin(sys.argv[1], file, *origin, setup)
"""


def python() -> str:
    """The interpreter that runs children.

    Raises:
        RuntimeError: ``sys.executable`` is none; the message says what helps.
    """
    chosen = config.python()
    if chosen is not None:
        return chosen
    executable = sys.executable
    if is_frozen():
        raise RuntimeError(
            f"this application is frozen: sys.executable ({executable!r}) is the application "
            f"itself, and starting it would run that again. {advice()}"
        )
    if not executable:
        raise RuntimeError(
            f"sys.executable is {executable!r}, so there is no interpreter to start. {advice()}"
        )
    return executable


def is_frozen() -> bool:
    """Whether this is an application of PyInstaller or its like, which has its modules inside."""
    return bool(getattr(sys, "frozen", False))


def advice() -> str:
    """What to do where ``sys.executable`` is no Python interpreter."""
    return (
        "MPGRAD_PYTHON=/path/to/python names an interpreter of the same version in which mpgrad is "
        'installed; Engine(mode="local") or MPGRAD_ENGINE=local needs none. '
        "(multiprocessing.freeze_support() helps the processes of multiprocessing, not these.)"
    )


def in_words(executable: str) -> str:
    """What ``python()`` gave, and what it must be."""
    source = "MPGRAD_PYTHON" if config.python() is not None else "sys.executable"
    major, minor, *_ = sys.version_info
    return f"{executable!r} ({source}), which must be Python {major}.{minor}. {advice()}"


def command(executable: str, package: str, descriptor: int) -> list[str]:
    """What runs the child ``package`` of mpgrad, with ``assert``, ``__debug__``, texts and imports
    that mean the same as in this process.

    Args:
        executable: see ``python``.
        package: has a module ``__main__`` with a function ``main``, which gets the setup.
        descriptor: where the child reads its start, see ``start_of``.
    """
    options = ["-P", "-X", f"utf8={sys.flags.utf8_mode}"]
    for name, letter in _OPTIONS.items():
        # An application needs no site-packages, as other flags of its say; its interpreter does.
        count = int(getattr(sys.flags, name)) if name == "optimize" or not is_frozen() else 0
        if count:
            options.append("-" + letter * count)
    for name, value in sys._xoptions.items():
        if name not in _NOT_PASSED_ON:
            options += ["-X", name if value is True else f"{name}={value}"]
    return [executable, *options, "-c", _FIRST_CODE, package, str(descriptor)]


def environment(wanted: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which a child is started; ``begin`` gives it the wanted one.

    Of Python's variables it has those that this interpreter was started with, or none if that
    ignored them; but some as they are wanted.

    Args:
        wanted: the child's environment; None: this process's.
    """
    wanted = os.environ if wanted is None else wanted
    if is_frozen():
        return _environment_of_another(wanted) | {MARK: str(os.getpid())}
    found = {name: value for name, value in wanted.items() if not is_of_python(name)}
    if sys.flags.ignore_environment:
        as_wanted = _AS_WANTED - {"PYTHONPATH"}
    else:
        as_wanted = _AS_WANTED
        at_start = _environment_at_start().items()
        found |= {k: v for k, v in at_start if is_of_python(k) and k not in _NOT_AT_START}
    found |= {name: wanted[name] for name in as_wanted if name in wanted}
    found[MARK] = str(os.getpid())
    return found


def _environment_of_another(wanted: Mapping[str, str]) -> dict[str, str]:
    """What the interpreter gets that a frozen application starts: not the application's libraries.

    PyInstaller keeps the user's value of that variable.
    """
    found = {name: value for name, value in wanted.items() if name != "LD_LIBRARY_PATH"}
    if "LD_LIBRARY_PATH_ORIG" in wanted:
        found["LD_LIBRARY_PATH"] = wanted["LD_LIBRARY_PATH_ORIG"]
    return found


def is_of_python(name: str) -> bool:
    """Whether a variable of the environment is one that Python reads when it starts."""
    return name.startswith("PYTHON")


def _environment_at_start() -> dict[str, str]:
    """This process's environment when it began; ``os.environ`` may have changed since."""
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = os.fsdecode(file.read()).split("\0")
    except OSError:
        return dict(os.environ)
    # A process that shows a title of its own in `ps` may have overwritten all of them.
    return dict(entry.split("=", 1) for entry in entries if "=" in entry) or dict(os.environ)


def origin(wanted: Mapping[str, str] | None = None, *, with_path: bool = True) -> bytes:
    """What a child needs to know of this process: for ``start_of``.

    A frozen application has no files that another interpreter could import. In a zip archive
    mpgrad is found by the path alone.

    Args:
        wanted: the child's environment; None: this process's.
        with_path: whether the child imports what this process would import.
    """
    wanted = os.environ if wanted is None else wanted
    path = import_path() if with_path and not is_frozen() else []
    here = os.path.abspath(str(mpgrad.__file__))
    file = here if os.path.isfile(here) and not is_frozen() else None
    variables = {name: value for name, value in wanted.items() if is_of_python(name)}
    return marshal.dumps((tag(), path, file, mpgrad.__version__, variables))


def import_path() -> list[str]:
    """``sys.path`` for a child, whose working directory may become another one."""
    entries = [entry for entry in sys.path if isinstance(entry, str)]
    try:
        return [entry or os.getcwd() for entry in entries]
    except FileNotFoundError:  # the directory has been removed
        return list(filter(None, entries))


def start_of(origin: bytes, setup: bytes) -> bytes:
    """What a child reads first.

    Args:
        origin: of the process that it must be like, see ``origin``.
        setup: for its ``main``.
    """
    return marshal.dumps((origin, setup))


def tag() -> str:
    """What two interpreters must have in common to run the same code and extensions."""
    return f"{sys.implementation.cache_tag}{sys.abiflags}"


def require_no_mark() -> None:
    """Make sure that this process was not meant to be a child.

    Raises:
        RuntimeError: another process of this application has tried to start a worker.
    """
    if MARK in os.environ:
        raise RuntimeError(
            f"process {os.environ[MARK]} has started this one to run mpgrad's code, and it runs "
            f"the application again: sys.executable ({sys.executable!r}) is not Python there. "
            f"{advice()}"
        )
