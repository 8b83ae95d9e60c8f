"""The pictures show the figures that were measured, each once."""

from __future__ import annotations

import pytest

from benchmarks import plots
from benchmarks.report import Run
from benchmarks.rounds import CaseResult, Point


def case(name, series, x, **samples):
    named = {key.replace("_", " "): values for key, values in samples.items()}
    point = None if series is None else Point(series, x)
    return CaseResult(name, "ms", ("torch 1 thread",), (), named, dict.fromkeys(named, ""), point)


def test_speed_ups_are_relative_to_torch_and_the_first_case_counts():
    results = [
        case("2 ms", "small", 2.0, mpgrad_process=[2.0, 1.0], torch_1_thread=[4.0, 4.0]),
        case("2 ms and 4 MB", None, 2.0, mpgrad_process=[9.0], torch_1_thread=[9.0]),
        case("tasks", "small", 2.0, mpgrad_process=[1.0], joblib=[8.0], torch_1_thread=[4.0]),
    ]
    lines = plots.speed_up_lines(results)
    assert lines["mpgrad process"] == {2.0: (3.0, 2.0, 4.0)}
    assert lines["joblib"] == {2.0: (0.5, 0.5, 0.5)}


def test_times_are_those_of_one_shape():
    results = [
        case("chain", "chain", 100, mpgrad_process=[1.0, 3.0, 2.0]),
        case("wide", "wide", 100, mpgrad_process=[9.0]),
    ]
    assert plots.time_lines(results, "chain") == {"mpgrad process": {100: (2.0, 1.0, 3.0)}}


def test_pictures_are_written_beside_the_page(tmp_path):
    pytest.importorskip("matplotlib")
    samples = {"mpgrad_process": [1.0], "torch_1_thread": [2.0]}
    gil = [case(str(x), "small", x, **samples) for x in (0.2, 2.0)]
    nodes = [case(str(x), "chain", x, **samples) for x in (100, 1000)]
    run = Run({}, "", False, results={"gil_branches": gil, "scale": nodes})
    shown = plots.draw(run, tmp_path / "page.md")
    assert {path.name for path in tmp_path.iterdir()} == {
        "page-speed-up.png",
        "page-time-per-node.png",
    }
    assert "scale" in shown
    assert shown["gil_branches"] == "![Speed-up against task length](page-speed-up.png)"


def test_nothing_is_drawn_from_nothing(tmp_path):
    assert plots.draw(Run({}, "", False), tmp_path / "page.md") == {}
    assert list(tmp_path.iterdir()) == []
