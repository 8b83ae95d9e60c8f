"""Where a custom Function's backward may run.

``decide`` analyses the class once (see ``purity``) and afterwards only compares the values that the
class reads with their current ones. ``dumping`` makes bytes of it, and ``loading`` is the worker's
side. It knows neither graphs nor processes.
"""

from __future__ import annotations

import builtins
import hashlib
import os
import re
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from mpgrad.autograd.function import Function
from mpgrad.calls.custom_functions.code_reads import storing_line
from mpgrad.calls.custom_functions.constants import MISSING
from mpgrad.calls.custom_functions.contents import fingerprint
from mpgrad.calls.custom_functions.dumping import dump
from mpgrad.calls.custom_functions.findings import Survey, line_of
from mpgrad.calls.custom_functions.purity import survey
from mpgrad.calls.custom_functions.remedies import Obstacle, in_one_line, in_words, may_promise

#: The number of classes that are remembered; a dropped class is analysed again.
CACHE_LIMIT = 1024

#: The classes that have raised on a worker what they do not raise in this process, and the words.
_kept_here: weakref.WeakKeyDictionary[type[Function], str] = weakref.WeakKeyDictionary()

#: The classes that have run and have changed nothing that is compared.
_tried: weakref.WeakSet[type[Function]] = weakref.WeakSet()

_lock = threading.RLock()
_entries: OrderedDict[tuple[type, ...], _Entry] = OrderedDict()


@dataclass(frozen=True, slots=True)
class SerializedCode:
    """A Function class as bytes; equal ``code_id`` means equal code and constants."""

    code_id: str
    blob: bytes
    #: Classes in it of which a ctx holds instances.
    held: tuple[type, ...] = ()
    #: Whether its backward could change what it reads, or its ctx.
    may_change: bool = False
    #: Ids of objects that it reads and that are equal to nothing but themselves.
    reached: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Decision:
    """Where backward runs: ``reason`` why not on a worker, ``code`` to send to a worker; ``line``
    is the reason in short."""

    run_on: Literal["worker", "client"]
    reason: str = ""
    code: SerializedCode | None = None
    line: str = ""


@dataclass(frozen=True, slots=True)
class _Entry:
    asked: str | None
    decision: Decision
    survey: Survey


def decide(cls: type[Function], held: tuple[type, ...] = ()) -> Decision:
    """Where ``cls.backward`` runs now.

    Args:
        cls: the Function.
        held: the user's classes of values on its ctx, which are sent with it.

    A class that was analysed before costs one comparison per value that it reads. A class that
    reads values which can change unseen, but has ``run_on = "worker"``, is packed again.

    Raises:
        ValueError: ``run_on`` is not None, ``"worker"`` or ``"client"``.
        TypeError: ``run_on = "worker"``, but the class cannot be pickled.
    """
    asked = cls._checked_run_on()
    if asked == "client":
        return Decision("client", f'{cls.__qualname__} has run_on = "client"')
    if asked is None and (reason := _kept_here.get(cls)):
        return Decision("client", reason)
    entry = _entries.get((cls, *held))
    if entry is not None and entry.asked == asked and entry.survey.is_current():
        if asked is None or not entry.survey.can_change_unseen:
            return entry.decision
        found = entry.survey
    else:
        found = None
    with _lock:
        entry = _decide(cls, asked, held, found)
        _entries[cls, *held] = entry
        _entries.move_to_end((cls, *held))
        if len(_entries) > CACHE_LIMIT:
            _entries.popitem(last=False)
    return entry.decision


def keep_in_client(cls: type[Function], reason: str) -> None:
    """Let ``cls.backward`` run in the client from now on, unless it has ``run_on = "worker"``."""
    _kept_here[cls] = reason


def keep_changing(cls: type[Function], what: str) -> str:
    """As ``keep_in_client``, because its backward changes ``what``; return that in words."""
    named = re.search("`([^`]*)`", what)
    where = _changing_line(cls, named[1]) if named else ""
    thing = f"{named[0]} in {where}" if named and where else what
    reason = (
        f"{cls.__qualname__} runs in this process from now on: its backward changes {thing}. "
        'Change a copy of it, or set run_on = "client".'
    )
    keep_in_client(cls, reason)
    return reason


def note_tried(functions: Iterable[type[Function]]) -> None:
    """Their backward has run, and has changed nothing that is compared."""
    _tried.update(functions)


def is_tried(cls: type[Function]) -> bool:
    """Whether that is known of ``cls``."""
    return cls in _tried


def _changing_line(cls: type[Function], name: str) -> str:
    """Where the code of ``cls`` changes what it reads as ``name``, in words; empty if unknown."""
    for (one, *_), entry in list(_entries.items()):
        for code in entry.survey.code if one is cls else ():
            if isinstance(code, types.FunctionType) and (line := storing_line(code.__code__, name)):
                return line_of(code, line)
    return ""


def what_changed(cls: type[Function], held: tuple[type, ...] = ()) -> str:
    """The name of one thing that the class reads and that has changed since the decision; empty if
    nothing has changed."""
    entry = _entries.get((cls, *held))
    return "" if entry is None else entry.survey.what_changed()


def compared_of(
    cls: type[Function], held: tuple[type, ...]
) -> list[tuple[str, Callable[[], object]]]:
    """What is compared in each backward of the class: who reads it in words, and what compares."""
    entry = _entries.get((cls, *held))
    if entry is None:
        return []
    found = entry.survey
    contents = [(one.label, one.is_current) for one in found.contents]
    return [
        *contents,
        *((label, partial(fingerprint, [value], found.contents)) for value, label in found.values),
    ]


def names_read(cls: type[Function], held: tuple[type, ...] = ()) -> list[str]:
    """The names that the class's backward reads besides its arguments; empty before a decision."""
    entry = _entries.get((cls, *held))
    if entry is None:
        return []
    found = dict.fromkeys(
        name
        for namespace, name, value in entry.survey.bindings
        if isinstance(namespace, dict) and value is not MISSING and namespace is not vars(builtins)
    )
    found.update(dict.fromkeys(f"{module}.{name}" for module, name in entry.survey.settings))
    return list(found)


# ---------------------------------------------------------------------- deciding


def _decide(
    cls: type[Function], asked: str | None, held: tuple[type, ...], found: Survey | None
) -> _Entry:
    """Pack ``cls``; ``found`` is its survey, if that is current."""
    try:
        found = found or survey(cls, held, is_promised=asked == "worker")
    except Exception as error:  # a global may be an object that raises when it is inspected
        if asked == "worker":
            raise
        why = f"its code cannot be looked through ({type(error).__name__}: {error})"
        return _Entry(asked, _stays(cls, Obstacle(why)), Survey())
    if found.debugger and asked is None:
        why = f"in {cls.__qualname__}, {found.debugger}: it stops in this process"
        return _Entry(asked, Decision("client", why), found)
    if found.problems and asked is None:
        promises = may_promise(found.problems)
        return _Entry(asked, _stays(cls, found.problems[0], may_promise=promises), found)
    try:
        blob = dump(cls, held, found)
    except Exception as error:  # pickling runs arbitrary user code, so anything may be raised
        why = f"its code cannot be pickled ({type(error).__name__}: {error})"
        if asked is None:
            return _Entry(asked, _stays(cls, Obstacle(why)), found)
        raise TypeError(
            f'{cls.__qualname__} has run_on = "worker", but {why}. Remove values that cannot be '
            'pickled from its globals and closures, or set run_on = "client".'
        ) from error
    if not found.is_current():  # another thread wrote between the survey and the dump
        why = "what it reads changes while it is being read"
        return _Entry(asked, _stays(cls, Obstacle(why)), found)
    name = f"{cls.__module__}.{cls.__qualname__}"
    digest = hashlib.blake2b(
        name.encode(errors="surrogatepass") + b"\0" + blob, digest_size=16
    ).hexdigest()
    may_change = bool(found.values or found.contents or found.sets_attributes)
    serialized = SerializedCode(digest, blob, held, may_change, found.reached)
    return _Entry(asked, Decision("worker", "", serialized), found)


def _stays(cls: type[Function], problem: Obstacle, *, may_promise: bool = False) -> Decision:
    name = cls.__qualname__
    words = in_words(name, problem, may_promise=may_promise)
    return Decision("client", words, line=in_one_line(name, problem))


def _forget_lock_in_child() -> None:
    # A thread that does not exist in the child may hold it.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_lock_in_child)
