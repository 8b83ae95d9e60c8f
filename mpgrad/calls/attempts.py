"""Attempts: an item that raises is tried again, from where it began, if its call allows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mpgrad.calls.array_library import ArrayLibrary
from mpgrad.calls.call import BranchCall
from mpgrad.calls.travel import Receiver

R = TypeVar("R")


class Attempts:
    """What a call reaches, as it was when the item that runs began.

    Args:
        call: the call.
        inputs: its tensors.
        library: of these.

    Attributes:
        receiver: reads the items.
        fn, shared, keywords: what is called with them.
    """

    def __init__(self, call: BranchCall, inputs: Sequence[Any], library: ArrayLibrary) -> None:
        self._call, self._inputs, self._library = call, inputs, library
        self._open()

    def _open(self) -> None:
        call = self._call
        self.receiver = Receiver(self._inputs)
        found = self.receiver.load_shared(call.code.data, call.code_buffers)
        self.fn, self.shared, self.keywords, _ = found

    def of_item(self, number: int, run: Callable[[], R]) -> R:
        """What ``run`` returns. Before each new attempt all that the call reaches is made anew, and
        Modules' buffers are as they were.

        Raises:
            BaseException: what the last attempt has raised.
        """
        if not self._call.retries:
            return run()
        pairs = zip(self._inputs, self._call.inputs, strict=True)
        buffers = [(one, self._library.copied(one)) for one, kind in pairs if kind.is_buffer]
        for _ in range(self._call.retries):
            try:
                return run()
            except Exception:
                self._open()
                for buffer, before in buffers:
                    self._library.write(buffer, before)
        try:
            return run()
        except Exception as error:
            error.add_note(f"the last of {self._call.retries + 1} attempts at item {number}")
            raise
