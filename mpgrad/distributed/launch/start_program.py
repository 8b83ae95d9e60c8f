"""start_program(): the process of a rank, or of the ``mpgrad run`` that an agent of Ray starts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence

from mpgrad.base import interpreter
from mpgrad.wire.setup import send_start


def start_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int | None,
    pass_fds: tuple[int, ...] = (),
    process_group: int | None = None,
    cwd: str | None = None,
) -> subprocess.Popen[bytes]:
    """Start a script as a program of its own, in a Python like this one.

    It finds what it finds by itself first, and then what this process can import.

    Args:
        command: a script, or ``-m`` and a module, and its arguments.
        environment: its environment.
        stdin, pass_fds, process_group, cwd: of ``subprocess``; what it prints goes into pipes.

    Raises:
        RuntimeError: ``sys.executable`` is no Python.
        OSError: it cannot be started.
    """
    executable = interpreter.python()
    setup = json.dumps([os.getpid(), list(command), interpreter.import_path()]).encode()
    origin = interpreter.origin(environment, with_path=False)
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            interpreter.command(executable, "mpgrad.launch", reader),
            env=interpreter.environment(environment),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(reader, *pass_fds),
            process_group=process_group,
            cwd=cwd,
        )
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(reader)
    send_start(writer, origin, setup)
    return process
