"""The process of one rank, or of the ``mpgrad run`` that an agent of Ray has started."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import NoReturn

from mpgrad.base import config
from mpgrad.base.topology import share_of
from mpgrad.compat import script

_PR_SET_PDEATHSIG = 1


def main(setup: bytes) -> NoReturn:
    """Run the script; end with the launcher, however that ends.

    Args:
        setup: of ``start_program``.
    """
    launcher, command, path = json.loads(setup)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:  # it died before that
        sys.exit(1)
    # `python -m mpgrad run` has put the working directory there, `python script.py` does not.
    others = {*sys.path, os.getcwd()}
    sys.path += [entry for entry in path if entry not in others]
    if config.pin() != "none" and "LOCAL_RANK" in os.environ:
        here, beside = os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]
        os.sched_setaffinity(0, share_of(int(here), int(beside)))
    is_module = command[0] == "-m"
    file, *arguments = command[is_module:]
    sys.exit(script.run(file, arguments, is_module))
