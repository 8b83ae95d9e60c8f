"""What an engine needs of the kernel is asked for before anything is started."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from typing import NoReturn

import pytest

import mpgrad as mg
from mpgrad.engine.kernel_limits import require_real_threads


def test_a_kernel_without_pidfds_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> NoReturn:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with (
        pytest.raises(OSError, match=r"pidfd_open.*local") as caught,
        mg.Engine("process", cpu_workers=1),
    ):
        pass
    assert caught.value.errno == errno.ENOSYS


@pytest.mark.parametrize("owner", [threading, subprocess])
def test_threads_that_are_none(owner: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """As gevent's monkey-patching leaves them: waiting for processes would never end."""

    def patched() -> None: ...

    patched.__module__ = "gevent.thread"
    monkeypatch.setattr(owner, "get_ident" if owner is threading else "Popen", patched)
    with pytest.raises(RuntimeError, match=r"gevent has patched .*patch_all\(thread=False"):
        require_real_threads()
