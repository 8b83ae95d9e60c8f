"""HTML for notebooks: what ``_repr_html_`` of several classes is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def escaped(text: str) -> str:
    """Text with the characters replaced that have a meaning in HTML."""
    import html  # only notebooks need it

    return html.escape(text)


def html_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table; all cells are text."""
    lines = [_row("th", head), *(_row("td", row) for row in rows)]
    return f"<table>{''.join(lines)}</table>"


def _row(tag: str, cells: Sequence[object]) -> str:
    inside = [f'<{tag} style="text-align:left">{escaped(str(cell))}</{tag}>' for cell in cells]
    return f"<tr>{''.join(inside)}</tr>"


def preformatted(text: str) -> str:
    """Text as it is."""
    return f"<pre>{escaped(text)}</pre>"
