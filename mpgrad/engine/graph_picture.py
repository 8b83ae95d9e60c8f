"""GraphPicture: boxes and arrows, as SVG without anything else, as DOT, and as Mermaid."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: Boxes that a picture may have: of more nothing can be seen.
BOXES_MAX = 400

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 190, 38, 16, 34, 12
_LABEL_CHARACTERS = 26

#: Fill and border by the kind of a box.
COLOURS = {
    "worker": ("#dcecff", "#3b78c2"),
    "client": ("#ffe9cf", "#c97f1e"),
    "captured": ("#eeeeee", "#8a8a8a"),
}
_PATH_COLOUR = "#c0282d"


class Box(NamedTuple):
    """What is drawn for a Node or a NodeTask."""

    label: str
    #: A second line.
    detail: str
    #: One of ``COLOURS``.
    kind: str
    #: Shown where the mouse is.
    hint: str = ""


@dataclass
class GraphPicture:
    """A graph without cycles.

    Attributes:
        boxes: what is in it.
        edges: pairs of positions in ``boxes``: from, to.
        path: positions of the boxes of one chain, which stand out.
    """

    boxes: Sequence[Box]
    edges: Sequence[tuple[int, int]]
    path: Sequence[int] = field(default_factory=tuple)

    def _check_size(self) -> None:
        if len(self.boxes) > BOXES_MAX:
            raise ValueError(
                f"a graph of {len(self.boxes)} boxes cannot be read as a picture (the limit is "
                f"{BOXES_MAX}); to_dot() gives it to Graphviz, print(...) shows it as text"
            )

    # ------------------------------------------------------------------ SVG

    def to_svg(self) -> str:
        """The picture: gradients flow from top to bottom.

        Raises:
            ValueError: there are too many boxes.
        """
        self._check_size()
        rows = self._rows()
        widest = max((len(row) for row in rows), default=1)
        width = 2 * _MARGIN + widest * (_WIDTH + _GAP_X) - _GAP_X
        height = 2 * _MARGIN + max(len(rows), 1) * (_HEIGHT + _GAP_Y) - _GAP_Y
        corner: dict[int, tuple[float, float]] = {}
        for number, row in enumerate(rows):
            left = (width - len(row) * (_WIDTH + _GAP_X) + _GAP_X) / 2
            for at, box in enumerate(row):
                corner[box] = left + at * (_WIDTH + _GAP_X), _MARGIN + number * (_HEIGHT + _GAP_Y)
        links = set(zip(self.path, self.path[1:], strict=False))
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" font-family="system-ui, sans-serif">'
        ]
        lines += [self._arrow(corner, edge, is_on_path=edge in links) for edge in self.edges]
        lines += [self._box(number, corner[number]) for number in range(len(self.boxes))]
        return "\n".join([*lines, "</svg>"])

    def _box(self, number: int, corner: tuple[float, float]) -> str:
        box, (x, y) = self.boxes[number], corner
        fill, border = COLOURS[box.kind]
        is_on_path = number in self.path
        stroke = _PATH_COLOUR if is_on_path else border
        middle = x + _WIDTH / 2
        return (
            f"<g><title>{html.escape(box.hint or box.label)}</title>"
            f'<rect x="{x:g}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="{fill}" '
            f'stroke="{stroke}" stroke-width="{2.5 if is_on_path else 1}"/>'
            f'<text x="{middle:g}" y="{y + 16:g}" text-anchor="middle" font-size="12" '
            f'fill="#1a1a1a">{html.escape(_cut(box.label))}</text>'
            f'<text x="{middle:g}" y="{y + 30:g}" text-anchor="middle" font-size="10" '
            f'fill="#555555">{html.escape(_cut(box.detail, 34))}</text></g>'
        )

    def _arrow(
        self, corner: dict[int, tuple[float, float]], edge: tuple[int, int], *, is_on_path: bool
    ) -> str:
        (x1, y1), (x2, y2) = corner[edge[0]], corner[edge[1]]
        x1, x2, y1 = x1 + _WIDTH / 2, x2 + _WIDTH / 2, y1 + _HEIGHT
        colour = _PATH_COLOUR if is_on_path else "#9a9a9a"
        bend = (y2 - y1) / 2
        return (
            f'<path d="M{x1:g} {y1:g}C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2:g}" '
            f'fill="none" stroke="{colour}" stroke-width="{2.5 if is_on_path else 1}"/>'
        )

    def _rows(self) -> list[list[int]]:
        """Each box below all that flow into it; in a row, near the middle of those."""
        below = [0] * len(self.boxes)
        producers: list[list[int]] = [[] for _ in self.boxes]
        for source, target in self._in_order():
            below[target] = max(below[target], below[source] + 1)
            producers[target].append(source)
        rows: list[list[int]] = [[] for _ in range(max(below, default=-1) + 1)]
        for number, row in enumerate(below):
            rows[row].append(number)
        place: dict[int, float] = {}
        for members in rows:
            members.sort(key=lambda number: _mean([place[p] for p in producers[number]], number))
            for at, number in enumerate(members):
                place[number] = at - len(members) / 2
        return rows

    def _in_order(self) -> list[tuple[int, int]]:
        """The edges, those into a box before those out of it."""
        leaving: list[list[int]] = [[] for _ in self.boxes]
        missing = [0] * len(self.boxes)
        for source, target in self.edges:
            leaving[source].append(target)
            missing[target] += 1
        ready = [number for number, count in enumerate(missing) if count == 0]
        found = []
        while ready:
            source = ready.pop()
            for target in leaving[source]:
                found.append((source, target))
                missing[target] -= 1
                if missing[target] == 0:
                    ready.append(target)
        return found

    # ------------------------------------------------------------------ text

    def to_dot(self) -> str:
        """For Graphviz: ``dot -Tsvg``."""
        lines = ["digraph backward {", "  node [shape=box, style=filled, fontname=sans];"]
        for number, box in enumerate(self.boxes):
            fill, border = COLOURS[box.kind]
            text = _quoted(f"{box.label}\n{box.detail}")
            lines.append(f'  n{number} [label={text}, fillcolor="{fill}", color="{border}"];')
        links = set(zip(self.path, self.path[1:], strict=False))
        for source, target in self.edges:
            style = f' [color="{_PATH_COLOUR}", penwidth=2]' if (source, target) in links else ""
            lines.append(f"  n{source} -> n{target}{style};")
        return "\n".join([*lines, "}"])

    def to_mermaid(self) -> str:
        """For pages that show Mermaid, such as README files on GitHub."""
        lines = ["flowchart TD"]
        for number, box in enumerate(self.boxes):
            text = html.escape(f"{box.label}<br/>{box.detail}", quote=True)
            text = text.replace("&lt;br/&gt;", "<br/>")
            lines.append(f'  n{number}["{text}"]:::{box.kind}')
        lines += [f"  n{source} --> n{target}" for source, target in self.edges]
        for kind, (fill, border) in COLOURS.items():
            lines.append(f"  classDef {kind} fill:{fill},stroke:{border}")
        return "\n".join(lines)


def _mean(values: Iterable[float], default: float) -> float:
    found = list(values)
    return sum(found) / len(found) if found else default


def _cut(text: str, limit: int = _LABEL_CHARACTERS) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
