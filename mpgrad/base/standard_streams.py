"""The standard streams: descriptors 0 to 2 are reserved for them; and messages on stderr.

A process may be started without them (`<&- >&-`), or close them to become a daemon. The kernel
gives the lowest free number to the next opened file. The output of C code would then go into a
message or into shared memory.
"""

from __future__ import annotations

import fcntl
import os
import sys
from typing import TextIO


def occupy_standard_streams() -> None:
    """Open /dev/null under each of the numbers 0 to 2 that is free.

    It is called before a process opens mpgrad's descriptors, so that all of these begin at 3, also
    those that a library opens later. Child processes do not inherit it.

    Raises:
        OSError: there is no /dev/null.
    """
    for number in range(3):
        try:
            fcntl.fcntl(number, fcntl.F_GETFD)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            if opened > 2:
                os.close(opened)  # another thread was faster


def say(text: str) -> None:
    """Print a message of mpgrad to stderr, if there is one."""
    write(sys.stderr, f"mpgrad: {text}\n")


def write(stream: TextIO | None, text: str) -> None:
    """Write and flush, if the stream exists and is open.

    Characters outside its encoding are escaped: printing must not make a backward fail.
    """
    if stream is None or getattr(stream, "closed", False):
        return
    try:
        stream.write(text)
    except UnicodeEncodeError as error:
        stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
    stream.flush()
