"""Graphs that span hosts, with the names of ``torch.distributed.autograd``.

Not here: what the hosts decide (``distributed.states``). Begin with ``dist_engine``.
"""

from __future__ import annotations

from mpgrad.base.lazy import attach as _attach

_NAMES_OF = {
    "mpgrad.distributed.autograd.dist_backward": (
        "backward context get_gradients _current_context _get_debug_info _get_max_id _new_context "
        "_release_context _retrieve_context"
    ),
    "mpgrad.distributed.autograd.contexts": "DistAutogradContext",
}
_HOME = {name: module for module, names in _NAMES_OF.items() for name in names.split()}

__all__ = [name for name in _HOME if not name.startswith("_")]

__getattr__, __dir__ = _attach(__name__, _HOME, first="mpgrad.tensor_methods")
