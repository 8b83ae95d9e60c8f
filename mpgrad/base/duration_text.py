"""``duration()``: a time as people read it."""

from __future__ import annotations


def duration(microseconds: float) -> str:
    """Three digits and the unit that suits them: ``83.2 us``, ``112 ms``, ``4.81 s``."""
    # What would be rounded to 1000 of a unit is 1 of the next one.
    units = [("s", 1e6), ("ms", 1e3), ("us", 1.0)]
    unit, size = next((one for one in units if microseconds >= 0.9995 * one[1]), units[-1])
    amount = microseconds / size
    return f"{amount:.0f} {unit}" if amount >= 99.95 else f"{amount:.3g} {unit}"
