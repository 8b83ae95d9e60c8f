"""Who unpickles, and what an error on its way to the caller may be."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import mpgrad
from mpgrad.errors import ProtocolError
from mpgrad.scheduler.events import NodeTaskFailed
from mpgrad.wire.remote_error import STATE_BYTES_MAX, TEXT_MAX, RemoteError, decode_error
from mpgrad.wire.remote_error import encode_error as packed
from mpgrad.wire.schema import MESSAGE_BYTES_MAX, encode

SOURCE = Path(mpgrad.__file__).parent
#: The only files that turn bytes into objects by running code, and whose bytes they read.
UNPICKLERS = {
    "base/interpreter.py": "a child reads its start, which its parent wrote: plain values",
    "wire/environment.py": "a worker reads what the client wrote",
    "wire/code_pickles.py": "code inside of the pickles of the others",
    "workers/rules.py": "a worker reads what the client wrote",
    "calls/custom_functions/loading.py": "a worker reads what the client wrote",
    "calls/packing.py": "a worker reads what the client wrote",
    "calls/branch_gradients.py": "the client reads results of workers",
    "calls/travel.py": "a worker reads what the client wrote; the client reads results of workers",
    "wire/remote_error.py": "the client reads what its workers raised",
    "data/worker_pool.py": "the client reads the batches of the worker processes that it started",
    "distributed/elastic.py": "a rank reads what it has saved, or a rank of its group",
    "distributed/object_collectives.py": "a rank reads what a rank of its group sent",
    "distributed/rpc/call_pickles.py": "a rank reads what a rank of its group sent",
    "serialization/files.py": "mg.load: a file that it is told to trust",
}


def test_nobody_else_unpickles() -> None:
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(
            r"\b(pickle|cloudpickle|marshal|shelve)\.loads?\b|\bUnpickler\b", path.read_text()
        )
    }
    assert found == set(UNPICKLERS)


def test_the_coordinator_cannot_unpickle_arrays_or_code() -> None:
    source = (
        "import sys, mpgrad.coordinator.coordinator, mpgrad.wire.zeromq\n"
        "print([name for name in ('cloudpickle', 'numpy') if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=SOURCE.parent)
    assert done.stdout == "[]\n"


class Bomb:
    """Unpickled, it makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def remote(**changes: Any) -> bytes:
    plain: dict[str, Any] = {
        "module": b"builtins",
        "qualname": b"ValueError",
        "message": "m",
        "traceback": "t",
    }
    plain |= {"state": b"", "cls": b"", "where": "AddBackward0 on worker 0 (pid 7)"}
    return msgspec.msgpack.encode(RemoteError(**plain | changes))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x97" + b"\xa0" * 6, b"\x91" * 5000], ids=len)
def test_an_error_that_cannot_be_read_is_an_error(data: bytes) -> None:
    error = decode_error(data)
    assert type(error) is ProtocolError
    assert "cannot be read" in str(error)


def test_only_exceptions_are_raised() -> None:
    error = decode_error(remote(module=b"os", qualname=b"getcwd"))
    assert type(error) is RuntimeError
    assert str(error) == "os.getcwd: m"


def test_no_init_of_the_user_is_called() -> None:
    error = decode_error(packed(HasInit(1), "worker 0"))
    assert type(error) is HasInit
    assert HasInit.calls == 1


class HasInit(Exception):
    calls = 0

    def __init__(self, code: int) -> None:
        super().__init__(str(code))
        HasInit.calls += 1


def test_the_client_does_unpickle_what_workers_raise(tmp_path: Path) -> None:
    """Not a defence: the reason why a worker must be as trusted as the client is."""
    decode_error(remote(state=pickle.dumps(Bomb(tmp_path / "was here"))))
    assert (tmp_path / "was here").is_dir()


@pytest.mark.parametrize("error", [
    ValueError("x" * (MESSAGE_BYTES_MAX + 1)),
    ValueError(bytes(STATE_BYTES_MAX + 1)),
    ValueError("\ud800 is no character"),
], ids=["long text", "large argument", "surrogate"])  # fmt: skip
def test_an_error_always_fits_a_message(error: ValueError) -> None:
    data = packed(error, "worker 0")
    assert len(encode(NodeTaskFailed("w0.1", 1, 2, 1, data))) < MESSAGE_BYTES_MAX
    rebuilt = decode_error(data)
    assert type(rebuilt) is ValueError
    assert len(str(rebuilt)) < 2 * TEXT_MAX
