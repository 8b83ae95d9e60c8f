"""The error where the kernel refuses a system call: it names the call, and what works without it.

Sandboxes and the filters of services (seccomp) refuse single calls, and old kernels lack some.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

#: What a call gives if there is not enough of something, for now or by a limit: no refusal.
SHORTAGES = frozenset({
    errno.ENOMEM, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN,
})  # fmt: skip


def refused(call: str, number: int, use: str) -> OSError:
    """The error to raise.

    Args:
        call: the name of the system call.
        number: the errno that it has given.
        use: what it was for, in words.
    """
    return OSError(
        number,
        f"{use} cannot be used here: {call}: {os.strerror(number)} (a sandbox, a service's filter "
        'of system calls, or an old kernel); Engine(mode="local") needs none',
    )


def is_from_kernel(error: OSError) -> bool:
    """Whether a system call has given ``error``: a handler of a signal may raise others there."""
    return error.errno is not None and not isinstance(error, TimeoutError)


@contextlib.contextmanager
def named(call: str, use: str) -> Iterator[None]:
    """Let a refusal in this block say which call it is.

    Raises:
        OSError: with the same number, see ``refused``; or that of a shortage, as it is.
    """
    try:
        yield
    except OSError as error:
        if error.errno in SHORTAGES or not is_from_kernel(error):
            raise
        raise refused(call, error.errno or 0, use) from error
