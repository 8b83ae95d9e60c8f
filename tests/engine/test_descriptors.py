"""What an engine needs of the kernel is asked for before anything is started."""

from __future__ import annotations

import errno
import os
from typing import NoReturn

import pytest

import mpgrad as mg


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
