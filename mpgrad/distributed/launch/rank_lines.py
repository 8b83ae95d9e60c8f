"""What ranks print: each line carries its rank, and may go to a file, too."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import IO, Any

#: A line that is longer is printed in pieces.
LINE_BYTES_MAX = 64 * 1024


class RankLines:
    """What one process prints.

    Args:
        rank: that its lines carry.
        log: a file that gets the same without the rank.
    """

    def __init__(self, rank: int, log: IO[bytes] | None) -> None:
        self._head, self._log = f"[rank {rank}] ".encode(), log
        #: What it has printed since its last line, by stream.
        self._unfinished: dict[int, bytes] = {}

    def take(self, stream: Any, sink: IO[str]) -> bool:
        """Print what there is; whether more may come."""
        try:
            data = os.read(stream.fileno(), LINE_BYTES_MAX)
        except BlockingIOError:
            return True
        if self._log is not None:
            self._log.write(data)
            self._log.flush()
        number = stream.fileno()
        text = self._unfinished.pop(number, b"") + data
        *lines, rest = text.split(b"\n")
        if not data or len(rest) >= LINE_BYTES_MAX:
            lines, rest = ([*lines, rest] if rest else lines), b""
        if rest:
            self._unfinished[number] = rest
        if lines:
            write(sink, b"".join(self._head + line + b"\n" for line in lines))
        return bool(data)

    def close(self) -> None:
        """Nothing comes any more."""
        if self._log is not None:
            self._log.close()


def write(sink: IO[str], data: bytes) -> None:
    """To the bytes below, where there are such: lines of ranks need not be text."""
    with contextlib.suppress(BrokenPipeError):
        if hasattr(sink, "buffer"):
            sink.flush()
            sink.buffer.write(data)
        else:
            sink.write(data.decode(errors="replace"))
        sink.flush()


def say(text: str) -> None:
    write(sys.stderr, f"mpgrad run: {text}\n".encode(errors="backslashreplace"))
