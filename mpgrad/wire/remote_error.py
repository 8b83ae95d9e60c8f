"""An exception from a worker: the caller gets the same type and attributes, and both tracebacks.

The client rebuilds it without calling the user's ``__init__``, which may require other arguments
than ``args``. It trusts its own workers, which run nothing but the client's own code.
"""

from __future__ import annotations

import importlib
import io
import linecache
import pickle
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from mpgrad.base import config
from mpgrad.base.user_frames import format_without_ours
from mpgrad.errors import ProtocolError, RemoteTraceback, add_note
from mpgrad.wire.code_pickles import CodePickler, dumps
from mpgrad.wire.packed_texts import pack_text, unpack_text, without_surrogates

#: The maximum length of an exception's pickled arguments and attributes (longer ones are omitted),
#: and of its text: a message has to hold all of it.
STATE_BYTES_MAX, TEXT_MAX = 16 * 1024 * 1024, 256 * 1024
#: The number of causes of an exception (``raise ... from ...``) that go with it.
CAUSES_MAX = 8


class RemoteError(msgspec.Struct, frozen=True, array_like=True):
    """The description of an exception in another process."""

    module: bytes
    qualname: bytes
    message: str
    traceback: str
    #: Pickled (arguments, attributes), as far as they can be pickled; empty if they are too long.
    state: bytes
    #: The pickled class itself, for classes that exist in no module.
    cls: bytes
    #: The node and the worker.
    where: str
    #: The traceback without the frames of mpgrad; empty if it has none.
    short: str = ""
    #: What it was raised from, encoded alike; empty: nothing.
    cause: bytes = b""


def encode_error(error: BaseException, where: str, *, causes: int = CAUSES_MAX) -> bytes:
    """Encode ``error``; ``where`` names the node and the worker."""
    kind, cause = type(error), error.__cause__
    text = "".join(traceback.format_exception(error))
    short = format_without_ours(error)
    try:
        # The builtin class has state outside __dict__ (OSError its file name).
        reduced: Any = _builtin_base(kind).__reduce__(error)
        args, attributes = reduced[1], reduced[2] if len(reduced) > 2 else {}
        try:
            state = _bounded(_pickled((args, attributes)))
        except Exception:
            state = _bounded(_pickled(_parts_that_travel(args, attributes)))
    except Exception:
        state = b""
    by_value = b""
    if not _has_its_name(kind):
        try:
            by_value = _bounded(dumps(kind))
        except Exception:
            by_value = b""
    return msgspec.msgpack.encode(
        RemoteError(
            pack_text(kind.__module__),
            pack_text(kind.__qualname__),
            _shortened(_text_of(error)),
            _shortened(text),
            state,
            by_value,
            where,
            "" if short == text else _shortened(short),
            encode_error(cause, "", causes=causes - 1) if cause is not None and causes else b"",
        )
    )


def decode_error(data: bytes, *, with_traceback: bool = True) -> BaseException:
    """The exception, with the remote traceback as its cause (``MPGRAD_TRACEBACK``).

    If it cannot be read, the result is a ProtocolError (returned, not raised).
    """
    try:
        remote = msgspec.msgpack.decode(data, type=RemoteError)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as failure:
        return ProtocolError(f"a task failed, and its error cannot be read: {failure}")
    error = _rebuild(remote)
    if with_traceback:
        add_note(error, f"raised in {remote.where}")
        is_full = not remote.short or config.traceback() == "full"
        text = remote.traceback if is_full else remote.short
        if is_full or '\n  File "' in text:  # else mpgrad has raised it, and it says all
            first = error
            while first.__cause__ is not None:
                first = first.__cause__
            object.__setattr__(first, "__cause__", RemoteTraceback(_with_source(text)))
    return error


def _with_source(text: str) -> str:
    """A traceback with the lines that only this process knows, as those of a notebook's cells."""
    found: list[str] = []
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        found.append(line)
        frame = _FRAME.fullmatch(line)
        if frame is not None and not following.startswith("    "):
            source = linecache.getline(frame[1], int(frame[2])).strip()
            found += [f"    {source}"] if source else []
    return "\n".join([*found, ""] if text.endswith("\n") else found)


_FRAME = re.compile(r' *File "(.*)", line (\d+), in .*')


def _rebuild(remote: RemoteError) -> BaseException:
    kind = _find_class(remote)
    args, attributes = _state(remote)
    if kind is None:
        return _unknown(remote)
    try:
        error = kind.__new__(kind, *args)
        builtin = _builtin_base(kind)
        builtin.__init__(error, *args)
        try:
            builtin.__setstate__(error, attributes)
        except AttributeError:
            vars(error).update(attributes)  # a frozen dataclass refuses setattr
        if remote.cause:
            cause = decode_error(remote.cause, with_traceback=False)
            object.__setattr__(error, "__cause__", cause)
    except Exception:
        return _unknown(remote)
    return error


def _unknown(remote: RemoteError) -> RuntimeError:
    """In place of an exception that cannot be built here."""
    module, qualname = unpack_text(remote.module), unpack_text(remote.qualname)
    error = RuntimeError(f"{module}.{qualname}: {remote.message}")
    for note in _state(remote)[1].get("__notes__", ()):
        error.add_note(note)
    return error


class _ErrorPickler(CodePickler):
    """Encodes exceptions inside (such as the members of a group) like the outer one."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, BaseException):
            return _decode_inner, (encode_error(obj, ""),)
        return super().reducer_override(obj)


def _decode_inner(data: bytes) -> BaseException:
    return decode_error(data, with_traceback=False)


def _pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    _ErrorPickler(buffer).dump(value)
    return buffer.getvalue()


def _parts_that_travel(args: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    """The same with texts for arguments that cannot be pickled, and without such attributes."""

    def travels(value: Any) -> bool:
        try:
            _pickled(value)
        except Exception:
            return False
        return True

    return (
        tuple([one if travels(one) else repr(one) for one in args]),
        {name: one for name, one in attributes.items() if travels(one)},
    )


def _bounded(data: bytes) -> bytes:
    return data if len(data) <= STATE_BYTES_MAX else b""


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its __str__ failed)"


def _shortened(text: str) -> str:
    """Beginning and end; lone surrogates, which UTF-8 cannot encode, are replaced."""
    if len(text) > TEXT_MAX:
        half = TEXT_MAX // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half:,} characters ...]\n{text[-half:]}"
    return without_surrogates(text)


def _builtin_base(kind: type[BaseException]) -> type[BaseException]:
    """The builtin class that ``kind`` is or derives from, and that its ``args`` fit."""
    return next(base for base in kind.__mro__ if base.__module__ == "builtins")


def _state(remote: RemoteError) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if remote.state:
        try:
            args, attributes = pickle.loads(remote.state)
            return tuple(args), dict(attributes)
        except Exception:
            pass  # the class of an attribute cannot be found here
    return (remote.message,), {}


def _has_its_name(kind: type[BaseException]) -> bool:
    """Whether the class is found by its name, in this process: one that came by value is not, nor
    is one that was defined in a function."""
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind


def _find_class(remote: RemoteError) -> type[BaseException] | None:
    """The class with that name; or, if it has none or was defined in a function, the one that came
    by value, which is this process's own if it came from here."""
    named = _class_or_none(lambda: _by_name(remote))
    by_value = _class_or_none(lambda: pickle.loads(remote.cls)) if remote.cls else None
    if by_value is not None and (named is None or "<locals>" in by_value.__qualname__):
        return by_value
    return named


def _by_name(remote: RemoteError) -> Any:
    module = unpack_text(remote.module)
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for name in unpack_text(remote.qualname).split("."):
        found = getattr(found, name)
    return found


def _class_or_none(find: Callable[[], Any]) -> type[BaseException] | None:
    try:
        found = find()
    except Exception:
        return None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
