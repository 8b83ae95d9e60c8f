"""The standard streams: descriptors 0 to 2 belong to them, and a line on stderr where there is one.

A process may have been started without them (`<&- >&-`), or close them to become a daemon. The
kernel gives the lowest free number to whatever is opened next; what C code prints would then go
into a message or into shared memory.
"""

from __future__ import annotations

import fcntl
import os
import sys
from typing import TextIO


def occupy_standard_streams() -> None:
    """Open /dev/null under each of the numbers 0 to 2 that is free.

    Asked before a process opens descriptors of mpgrad's; then all of these begin at 3, also those
    that a library opens later by itself. Programs that are started from here do not inherit it.

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
    """Print a line of mpgrad's own to stderr; nothing where there is none."""
    write(sys.stderr, f"mpgrad: {text}\n")


def write(stream: TextIO | None, text: str) -> None:
    """Write and flush; nothing where there is no stream or it is closed.

    What its encoding lacks is escaped: a gradient is not to fail for what somebody prints.
    """
    if stream is None or getattr(stream, "closed", False):
        return
    try:
        stream.write(text)
    except UnicodeEncodeError as error:
        stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
    stream.flush()
