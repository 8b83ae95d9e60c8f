"""StopIteration that is not the end of an iterator: it becomes a RuntimeError, as in PEP 479."""

from __future__ import annotations


def accidental_end(what: str) -> RuntimeError:
    """The error to raise from a StopIteration that has left code of the user.

    An iterator of the caller (``map``, a ``__next__``) would take the StopIteration for its own
    end: a loop would be over without a word.

    Args:
        what: the code of the user.
    """
    return RuntimeError(
        f"{what} raised StopIteration, which a loop of the caller would take for its own end. Was "
        "next() called on an empty iterator? Give it a default, or catch StopIteration there"
    )
