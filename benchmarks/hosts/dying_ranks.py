"""Ranks that add up until one of them is lost; each says when it knows: ``lost SECONDS``."""

from __future__ import annotations

import os
import time

import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad.errors import HostLost


def main() -> None:
    """Run until a rank is lost."""
    mg.set_engine(mg.Engine("local"))
    dist.init_process_group()
    value = mg.ones(1024)
    dist.all_reduce(value)
    print("ready", os.getpid(), flush=True)
    try:
        while True:
            dist.all_reduce(value.fill_(1.0))
    except HostLost:
        print("lost", time.monotonic(), flush=True)
        os._exit(0)


if __name__ == "__main__":
    main()
