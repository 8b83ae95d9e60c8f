"""The names of ``torch.version``."""

from __future__ import annotations

from mpgrad.compat.top import __version__ as __version__

cuda = hip = git_version = None
