"""Budget: the work and memory that a file may ask for, by the bytes that it has."""

from __future__ import annotations

import pickle

from mpgrad.serialization.byte_source import ByteSource

#: Bytes to copy, or to go through, for each byte of the file that was read. An array of several
#: Tensors is in the file once, and each of them gets a copy.
TIMES_MAX = 100
#: What every file may ask for.
BYTES_MIN = 1 << 20


class Budget:
    """What one file may still ask for.

    Args:
        source: where the file is read.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._spent = 0

    def spend(self, nbytes: int) -> None:
        """Count bytes that are copied or gone through.

        Raises:
            pickle.UnpicklingError: they are too many.
        """
        self._spent += nbytes
        self.check(self._spent)

    def check(self, nbytes: int) -> None:
        """See that one object does not ask for more than the file may.

        Raises:
            pickle.UnpicklingError: it does.
        """
        if nbytes > BYTES_MIN + TIMES_MAX * self._source.taken:
            raise pickle.UnpicklingError(
                f"Weights only load failed: the file asks for over {TIMES_MAX} times the memory or "
                "work of its own length. If you trust the file, use "
                "mg.load(..., weights_only=False)."
            )
