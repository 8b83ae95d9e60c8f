"""Numbers in letters five lines high, for results that should be seen from afar."""

from __future__ import annotations

_GLYPHS = {
    "0": ("#####", "#   #", "#   #", "#   #", "#####"),
    "1": ("  #  ", " ##  ", "  #  ", "  #  ", " ### "),
    "2": ("#####", "    #", "#####", "#    ", "#####"),
    "3": ("#####", "    #", " ####", "    #", "#####"),
    "4": ("#   #", "#   #", "#####", "    #", "    #"),
    "5": ("#####", "#    ", "#####", "    #", "#####"),
    "6": ("#####", "#    ", "#####", "#   #", "#####"),
    "7": ("#####", "    #", "   # ", "  #  ", "  #  "),
    "8": ("#####", "#   #", "#####", "#   #", "#####"),
    "9": ("#####", "#   #", "#####", "    #", "#####"),
    ".": ("  ", "  ", "  ", "  ", "##"),
    "x": ("     ", "#   #", " # # ", " # # ", "#   #"),
}


def in_large_letters(text: str, ink: str = "█") -> str:
    """``text`` in five lines.

    Args:
        text: digits, ``.`` and ``x`` only.
        ink: the character that letters are drawn with.

    Raises:
        KeyError: ``text`` holds another character.
    """
    rows = zip(*(_GLYPHS[character] for character in text), strict=True)
    return "\n".join("  ".join(row).replace("#", ink) for row in rows)
