"""The one hook by which tests change the processes of an engine: ``MPGRAD_TEST_HOOK``."""

from __future__ import annotations

import pkgutil
from typing import TypeVar

from mpgrad.base import config

T = TypeVar("T")


def hooked(process: str, part: T) -> T:
    """The replacement of a part of this process: ``part`` itself unless a test replaces it.

    Args:
        process: "client", "coordinator" or "worker".
        part: the client's Dealer, the coordinator's Router, or the class of workers.
    """
    function = config.test_hook()
    return pkgutil.resolve_name(function)(process, part) if function else part
