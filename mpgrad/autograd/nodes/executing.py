"""executing(): which Node's user code, or which Node's recorded rule, this thread runs now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mpgrad.autograd.running.thread_state import PerThread

if TYPE_CHECKING:
    from mpgrad.autograd.nodes.node import Node


class _Executing(PerThread):
    node: Node | None = None


_executing = _Executing()


@contextmanager
def executing(node: Node) -> Iterator[None]:
    """User code of ``node`` runs inside."""
    before, _executing.node = _executing.node, node
    try:
        yield
    finally:
        _executing.node = before


def current_autograd_node() -> Node | None:
    """The Node whose hook or Function runs on this thread now; None outside of those."""
    return _executing.node
