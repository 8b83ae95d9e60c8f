"""The page's two pictures: speed-up against task length, and time per node against graph size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.process import is_installed
from benchmarks.report import Run, published
from benchmarks.rounds import CaseResult
from benchmarks.statistics import Spread, speed_up, spread

#: x -> figure, of one contender.
Line = dict[float, Spread]

_MINE = "mpgrad process"
_TORCH = "torch 1 thread"
#: Okabe and Ito's colours, which people with colour blindness can distinguish.
_COLOURS = {
    _MINE: "#d55e00",
    "mpgrad auto": "#e69f00",
    "mpgrad local": "#cc79a7",
    _TORCH: "#000000",
    "HIPS autograd": "#0072b2",
    "Ray actors": "#009e73",
    "Dask actors": "#56b4e9",
    "joblib": "#8c6bb1",
    "ProcessPoolExecutor": "#999999",
    "two-process limit": "#555555",
}
_OTHER_COLOUR = "#bbbbbb"
_SHAPES = ("chain", "wide", "tree")


def draw(run: Run, page: Path) -> dict[str, str]:
    """Draw the pictures of ``run`` into files beside ``page``.

    Returns:
        The Markdown that shows each picture, by its workload; empty if matplotlib is not
        installed.
    """
    if not is_installed("matplotlib"):
        return {}
    pictures = {
        "gil_branches": ("speed-up", "Speed-up against task length", _speed_ups(run)),
        "scale" if "scale" in run.results else "overhead": (
            "time-per-node",
            "Time per node against graph size",
            _times_per_node(run),
        ),
    }
    shown = {}
    for workload, (name, title, figure) in pictures.items():
        if figure is not None:
            path = page.with_name(f"{page.stem}-{name}.png")
            figure.savefig(path, dpi=144, metadata={"Software": None})
            shown[workload] = f"![{title}]({path.name})"
    return shown


def speed_up_lines(results: Sequence[CaseResult]) -> dict[str, Line]:
    """The speed of every contender relative to torch at each task length.

    If two cases have the same length, such as mpgrad compared with autograd systems and with task
    systems, the first counts.
    """
    lines: dict[str, Line] = {}
    for result in published(results):
        if result.point is None:
            continue
        for contender in result.samples:
            found = speed_up(result, contender, _TORCH)
            if found is not None:
                lines.setdefault(contender, {}).setdefault(result.point.x, found)
    return lines


def time_lines(results: Sequence[CaseResult], shape: str) -> dict[str, Line]:
    """The time per node of every contender at each size of the graphs of one shape."""
    lines: dict[str, Line] = {}
    for result in results:
        if result.point is not None and result.point.series == shape:
            for contender, samples in result.samples.items():
                lines.setdefault(contender, {}).setdefault(result.point.x, spread(samples))
    return lines


def _speed_ups(run: Run) -> Any:
    lines = speed_up_lines(run.results.get("gil_branches", ()))
    if not lines.get(_MINE):
        return None
    figure, axes = _figure(1, (9, 5))
    (axis,) = axes
    _draw_lines(axis, lines)
    axis.axhline(1.0, color=_COLOURS[_TORCH], linewidth=0.8)
    lengths = sorted(lines[_MINE])
    axis.set_xticks(lengths, [f"{length:g}" for length in lengths])
    axis.set_ylim(bottom=0.0)
    axis.set_xlabel("length of a task that holds the GIL, ms (16 of them, side by side)")
    axis.set_ylabel("times the speed of torch")
    axis.set_title("16 branches of pure Python, two workers: speed-up against task length")
    _label(figure, axis)
    return figure


def _times_per_node(run: Run) -> Any:
    # A line is of one workload: overhead repeats a graph in one process, scale never does.
    scale, overhead = (run.results.get(name, ()) for name in ("scale", "overhead"))
    panels = {shape: time_lines(scale, shape) or time_lines(overhead, shape) for shape in _SHAPES}
    panels = {shape: lines for shape, lines in panels.items() if lines.get(_MINE)}
    if not panels:
        return None
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, axes = _figure(len(panels), (3 + 3 * len(panels), 4.5))
    for axis, (shape, lines) in zip(axes, panels.items(), strict=True):
        _draw_lines(axis, lines)
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.set_title(shape)
        axis.set_xlabel("nodes")
    axes[0].set_ylabel("microseconds per node")
    figure.suptitle("Small nodes (8 numbers each): time per node against graph size")
    _label(figure, axes[-1])
    return figure


def _figure(panels: int, inches: tuple[float, float]) -> tuple[Any, Sequence[Any]]:
    from matplotlib.figure import Figure  # without pyplot: no display, nothing global

    figure = Figure(figsize=inches, layout="constrained")
    axes = figure.subplots(1, panels, sharey=True, squeeze=False)[0]
    for axis in axes:
        axis.grid(True, which="major", color="#e0e0e0", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _draw_lines(axis: Any, lines: Mapping[str, Line]) -> None:
    """Medians, and for mpgrad's workers the range of the rounds."""
    axis.set_xscale("log")
    order = {name: number for number, name in enumerate(_COLOURS)}
    for name in sorted(lines, key=lambda name: order.get(name, len(order))):
        xs = sorted(lines[name])
        found = [lines[name][x] for x in xs]
        is_mine = name == _MINE
        colour = _COLOURS.get(name, _OTHER_COLOUR)
        axis.plot(
            xs,
            [one.median for one in found],
            label=name,
            color=colour,
            marker="o",
            markersize=5 if is_mine else 3.5,
            linewidth=2.6 if is_mine else 1.4,
            linestyle="--" if name == "two-process limit" else "-",
            zorder=4 if is_mine else 3,
        )
        if is_mine:
            low, high = [one.low for one in found], [one.high for one in found]
            axis.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)


def _label(figure: Any, axis: Any) -> None:
    handles, names = axis.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", frameon=False)
