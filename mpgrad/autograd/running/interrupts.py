"""interrupts_deferred(): a Ctrl-C waits while ``.grad`` is changed, which happens whole or not."""

from __future__ import annotations

import threading
import warnings

# Without the enums that ``signal.signal`` makes of what it gets and gives: in each backward, they
# would take ten times as long as all the rest.
from _signal import SIGINT  # type: ignore[import-not-found]
from _signal import signal as set_handler
from typing import Any


class interrupts_deferred:
    """Let a Ctrl-C wait until the block is over (it only ever reaches the main thread)."""

    def __enter__(self) -> None:
        self._is_main = threading.current_thread() is threading.main_thread()
        if self._is_main:
            self._arrived: list[Any] = []
            self._before = set_handler(SIGINT, self._arrive)

    def _arrive(self, *args: Any) -> None:
        self._arrived.append(args)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._is_main:
            return
        set_handler(SIGINT, self._before)
        if kind is not None or not self._arrived:
            return
        if callable(self._before):
            self._before(*self._arrived[0])
        else:
            warnings.warn("an interrupt arrived while gradients were committed", stacklevel=2)
