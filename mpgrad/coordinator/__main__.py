"""``python -m mpgrad.coordinator FD``: the entry of the coordinator process."""

from __future__ import annotations

import sys

from mpgrad.coordinator.coordinator_process import main

main(int(sys.argv[1]))
