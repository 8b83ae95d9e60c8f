"""The process of one rank, or of the ``mpgrad run`` that an agent of Ray has started.

``python -m mpgrad.launch.rank_process LAUNCHER [-m] SCRIPT ARGUMENT...``
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from mpgrad.base import config
from mpgrad.base.topology import share_of
from mpgrad.launch import script

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run the script; end with the launcher, however that ends."""
    _, launcher, *command = sys.argv
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(launcher):  # it died before that
        return 1
    # `python -m` has put the working directory there, `python script.py` does not.
    del sys.path[0]
    if config.pin() != "none" and "LOCAL_RANK" in os.environ:
        here, beside = os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]
        os.sched_setaffinity(0, share_of(int(here), int(beside)))
    is_module = command[0] == "-m"
    path, *arguments = command[is_module:]
    return script.run(path, arguments, is_module)


if __name__ == "__main__":
    sys.exit(main())
