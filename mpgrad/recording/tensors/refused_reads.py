"""What a worker has not: the state of the calling process's tensors (``.grad``, views).

Reading it raises inside user code, which may catch that. So it is noted, too, and the run fails.
"""

from __future__ import annotations

from typing import Any

#: What was refused since the last run of a Function began, in words.
REFUSED: list[str] = []


def refuse(text: str) -> RuntimeError:
    """The error to raise; it is noted."""
    REFUSED.append(text)
    return RuntimeError(text)


def refuse_of_client(tensor: Any, what: str) -> None:
    """Refuse ``what`` of a stand-in for a tensor of the calling process.

    Raises:
        RuntimeError: ``tensor`` is one.
    """
    if getattr(tensor, "_belongs_to_client", False):
        raise refuse(
            f"the {what} of a tensor of the calling process is read on a worker, which does not "
            'have it. Set run_on = "client" on the Function'
        )
