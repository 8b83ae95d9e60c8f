"""``python -m mpgrad``: the same as the command ``mpgrad``."""

from __future__ import annotations

import sys

from mpgrad.launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
