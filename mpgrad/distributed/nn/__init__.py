"""Modules that live on another host, with the name of ``torch.distributed.nn``.

Not here: calls of other functions (``distributed.rpc``). Begin with ``remote_module``.
"""

from __future__ import annotations

from mpgrad.base.lazy import attach as _attach

_HOME = {"RemoteModule": "mpgrad.distributed.nn.remote_module"}

__all__ = [*_HOME]

__getattr__, __dir__ = _attach(__name__, _HOME, first="mpgrad.tensor_methods")
