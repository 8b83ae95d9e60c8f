"""``python -m mpgrad.workers FD``: the entry of a worker process."""

from __future__ import annotations

import sys

from mpgrad.workers.bootstrap import main

main(int(sys.argv[1]))
