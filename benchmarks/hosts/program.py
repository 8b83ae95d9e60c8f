"""Program: ranks under ``mpgrad run``, what they are told and what they say."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

#: Seconds after which ranks that say nothing are killed.
SILENCE_S = 60.0


class Program:
    """The ranks of one script.

    Args:
        script: beside this file.
        ranks: how many; with an ``address`` on each of two nodes.
        arguments: of the script.
        restarts: how many ranks may be started again.
        address: of a Ray cluster.
    """

    def __init__(
        self,
        script: str,
        ranks: int,
        arguments: Sequence[str] = (),
        *,
        restarts: int = 0,
        address: str | None = None,
    ) -> None:
        command = [sys.executable, "-m", "mpgrad", "run", "--nproc-per-node", str(ranks)]
        if restarts:
            command += ["--max-restarts", str(restarts)]
        if address is not None:
            command += ["--address", address, "--nnodes", "2", "--cpu-workers", "1"]
        command += [str(Path(__file__).with_name(script)), *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # its ranks end with it
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def tell(self, text: str) -> None:
        """Write a line to the stdin of rank 0."""
        pipe: IO[str] | None = self.process.stdin
        assert pipe is not None
        print(text, file=pipe, flush=True)

    def said(self, word: str, times: int = 1) -> list[tuple[int, list[str]]]:
        """The next lines that begin with ``word``: the rank, and what follows the word.

        Raises:
            RuntimeError: the ranks have ended, or said nothing for a while.
        """
        found: list[tuple[int, list[str]]] = []
        assert self.process.stdout is not None
        with self._patience():
            while len(found) < times:
                line = self.process.stdout.readline()
                if not line:
                    raise RuntimeError(f"the ranks ended without saying {word!r}")
                rank, _, text = line.removeprefix("[rank ").partition("] ")
                if text.split()[:1] == [word]:
                    found.append((int(rank), text.split()[1:]))
        return found

    def answer(self, question: str = "") -> Any:
        """What rank 0 answers."""
        if question:
            self.tell(question)
        [(_, words)] = self.said("answer")
        return json.loads(" ".join(words))

    @contextmanager
    def _patience(self) -> Iterator[None]:
        timer = threading.Timer(SILENCE_S, self.process.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
