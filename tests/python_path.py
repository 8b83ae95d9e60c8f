"""What a child process must have as PYTHONPATH."""

from __future__ import annotations

import os
from pathlib import Path


def path_to(root: Path) -> str:
    """``root`` first, then what this process was given: mpgrad's packages may lie there alone."""
    # An empty entry would be the working directory.
    return os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
