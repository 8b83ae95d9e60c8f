"""RayAgent: the actor of one host, which starts ``mpgrad run`` there as its child.

An actor has no main thread to give, and Ray has changed its signals and its environment. So a
script never runs in it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO

from mpgrad.distributed.launch.group_setup import key_file, reserved_port
from mpgrad.distributed.launch.rank_lines import LINE_BYTES_MAX
from mpgrad.distributed.launch.start_program import start_program

#: What an actor has of Ray, and its child must not have.
_OF_RAY = ("RAY_", "OMP_NUM_THREADS")


class RayAgent:
    """One child, what it prints, and its end. Each method may wait: they have threads of their own.

    All that it has started ends with it.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._said: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None

    def port(self, address: str) -> int:
        """A port that is free at this host's ``address``, and stays so."""
        return self._stack.enter_context(reserved_port(address))

    def start(
        self, arguments: Sequence[str], variables: Mapping[str, str], directory: str, key: bytes
    ) -> str:
        """Start ``mpgrad run`` with these ``arguments``; why that is not possible, or nothing.

        Args:
            arguments: its command line.
            variables: go into its environment, which is this host's otherwise.
            directory: in which it runs.
            key: of the group.
        """
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_OF_RAY)}
        descriptor = self._stack.enter_context(key_file(key))
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        environment |= {**variables, "MPGRAD_GROUP_KEY_FILE": path}
        command = ["-m", "mpgrad", "run", *arguments]
        started: queue.SimpleQueue[str] = queue.SimpleQueue()
        # The kernel ends a child with the thread that has started it: this one lives as long.
        run = lambda: self._run(command, environment, directory, started)  # noqa: E731
        threading.Thread(target=run, daemon=True).start()
        return started.get()

    def _run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: str,
        started: queue.SimpleQueue[str],
    ) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the child inherits it
        try:
            process = start_program(command, environment, stdin=subprocess.DEVNULL, cwd=directory)
        except OSError as error:
            started.put(f"{error.filename}: {error.strerror}")
            return
        except RuntimeError as error:
            started.put(str(error))
            return
        self._process = process
        started.put("")
        readers = [
            threading.Thread(target=self._read, args=(descriptor, stream), daemon=True)
            for descriptor, stream in ((1, process.stdout), (2, process.stderr))
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        self._said.put((0, str(process.wait()).encode()))

    def _read(self, descriptor: int, stream: IO[bytes]) -> None:
        for line in iter(lambda: stream.readline(LINE_BYTES_MAX), b""):
            self._said.put((descriptor, line))

    def said(self) -> list[tuple[int, bytes]]:
        """Wait until the child prints or ends; what it has printed by descriptor.

        An entry of descriptor 0 is the last one: the exit code.
        """
        found = [self._said.get()]
        while not self._said.empty():
            found.append(self._said.get())
        return found

    def send_signal(self, number: int) -> None:
        """Pass a signal on to the child."""
        if self._process is not None:
            self._process.send_signal(number)
