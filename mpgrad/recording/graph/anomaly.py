"""Anomaly mode: each Node remembers where forward recorded it, so that a failure can be traced.

If a Node fails in backward (or gives NaN), a warning shows the forward call behind it; for a Node
that was itself recorded in a backward, also the call behind the Node whose backward that was.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_its_device
from mpgrad.base.user_frames import PACKAGE
from mpgrad.recording.graph.executing import current_autograd_node

if TYPE_CHECKING:
    from mpgrad.recording.graph.node import Node

_NO_TRACEBACK = (
    "No forward pass information available. Enable detect anomaly during forward pass for more "
    "information."
)


class _AnomalyMode:
    """One mode for all threads, as in PyTorch."""

    __slots__ = ("check_nan", "checks_nan", "enabled")

    def __init__(self) -> None:
        self.set(False, True)

    def set(self, enabled: bool, check_nan: bool) -> None:
        self.enabled, self.check_nan = enabled, check_nan
        #: Whether the results of Nodes are searched for NaN now.
        self.checks_nan = enabled and check_nan


mode = _AnomalyMode()


def is_anomaly_enabled() -> bool:
    """True if anomaly mode is on."""
    return mode.enabled


def is_anomaly_check_nan_enabled() -> bool:
    """True if anomaly mode, when it is on, looks for NaN."""
    return mode.check_nan


class set_detect_anomaly:
    """Switches anomaly mode at once; as a context manager, restores what was before.

    Args:
        mode: on or off.
        check_nan: while it is on, raise an error if a Node's gradient is NaN.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = (_current().enabled, _current().check_nan)
        _current().set(bool(mode), bool(check_nan))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        _current().set(*self._before)


class detect_anomaly:
    """``with detect_anomaly():`` shows the forward call behind an error or NaN in backward.

    Forward has to run inside, too. Everything is slower in this mode.

    Args:
        check_nan: raise an error if a Node's gradient is NaN.
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._check_nan = bool(check_nan)
        self._before = (mode.enabled, mode.check_nan)
        warnings.warn(
            "Anomaly Detection has been enabled. This mode will increase the runtime and should "
            "only be enabled for debugging.",
            stacklevel=2,
        )

    def __enter__(self) -> None:
        self._before = (mode.enabled, mode.check_nan)
        mode.set(True, self._check_nan)

    def __exit__(self, *exc: object) -> None:
        mode.set(*self._before)


def _current() -> _AnomalyMode:
    """The mode; for functions with an argument that shadows its name."""
    return mode


# ---------------------------------------------------------------------- the origin of a Node


def origin() -> dict[str, Any]:
    """The metadata of a Node that is recorded now: the stack, and the Node whose backward runs."""
    import traceback  # imported here: only this mode needs it

    stack = traceback.extract_stack()
    while stack and stack[-1].filename.startswith(PACKAGE):
        stack.pop()
    metadata: dict[str, Any] = {"traceback_": traceback.format_list(stack)}
    parent = current_autograd_node()
    if parent is not None:
        metadata["parent_"] = parent
    return metadata


def explain_failure(node: Node) -> None:
    """If anomaly mode is on, warn with the forward call of the Node that has failed."""
    if not mode.enabled:
        return
    node = node.subject
    _warn(
        f"Error detected in {node.name()}."
        + _traceback(node, " Traceback of forward call that caused the error:\n")
    )
    parent: Node | None = node.metadata.get("parent_")
    while parent is not None:
        _warn(
            f"\n\nPrevious calculation was induced by {parent.name()}."
            + _traceback(
                parent, " Traceback of forward call that induced the previous calculation:\n"
            )
        )
        parent = parent.metadata.get("parent_")


def _warn(text: str) -> None:
    """Warn; if warnings are errors, print, so that the original error is raised."""
    try:
        warnings.warn(text, stacklevel=3)
    except Warning:
        print(f"Warning: {text}", file=sys.stderr)


def _traceback(node: Node, title: str) -> str:
    lines = node.metadata.get("traceback_")
    return f"{title}{''.join(lines)}" if lines else f" {_NO_TRACEBACK}"


def refuse_nan(name: str, gradients: Sequence[Any]) -> None:
    """Raise if the results of a Node contain NaN.

    Raises:
        RuntimeError: the message names the Node and the first such output.
    """
    for index, gradient in enumerate(gradients):
        if gradient is not None and gradient.dtype.kind in "fc" and _has_nan(gradient):
            raise RuntimeError(f"Function '{name}' returned nan values in its {index}th output.")


def _has_nan(gradient: Any) -> bool:
    with on_its_device(gradient):
        return bool(np.isnan(gradient).any())
