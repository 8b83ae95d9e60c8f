"""Q3: the profiler, where Nodes run in the caller and where they run on workers."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

import mpgrad as mg
from tests.semantics.functions import define, double, squares, twice_the_gradient
from tests.semantics.paired import leaf, paired, row


def nodes_of(prof: Any, *names: str) -> list[Any]:
    """The ranges of Nodes whose names contain one of ``names``, in the order of time.

    In torch each is there twice, inside another one of the engine.
    """
    return [
        event
        for event in prof.events()
        if any(name in event.name for name in names) and "evaluate_function" not in event.name
    ]


@paired("Q3")
def test_one_range_for_each_node_that_ran(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = (x.exp() * x).sin().sum()
    with lib.profiler.profile() as prof:
        y.backward()
    names = "SumBackward0", "SinBackward0", "MulBackward0", "ExpBackward0"
    events = nodes_of(prof, *names)
    order = [name for event in events for name in names if name in event.name]
    numbers = [event.sequence_nr for event in events]
    return order, [numbers[0] - number for number in numbers]


@paired("Q3")
def test_ranges_follow_one_another_and_lie_inside_the_profile(lib: Any) -> Any:
    x = leaf(lib, 50)
    with lib.profiler.profile() as prof:
        before = len(prof.events()) if lib is mg else 0
        (x.exp() * x).sum().backward()
    events = nodes_of(prof, "SumBackward0", "MulBackward0", "ExpBackward0")
    starts = [event.time_range.start for event in events]
    assert starts == sorted(starts)
    assert all(event.time_range.start >= 0 for event in events)
    assert all(event.time_range.elapsed_us() >= 0 for event in events)
    ends = [event.time_range.end for event in events]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    return before, len(events)


@paired("Q3")
def test_only_what_runs_while_it_is_active_is_recorded(lib: Any) -> Any:
    x = leaf(lib, 3)
    (x * 2).sum().backward()
    prof = lib.profiler.profile()
    prof.start()
    (x.exp()).sum().backward()
    prof.stop()
    (x.sin()).sum().backward()
    names = ("MulBackward0", "ExpBackward0", "SinBackward0")
    return [len(nodes_of(prof, name)) for name in names]


@paired("Q3")
def test_record_function_is_a_block_or_a_decorator(lib: Any) -> Any:
    record_function = lib.profiler.record_function

    @record_function("decorated")
    def run(x: Any) -> Any:
        return x * 2

    x = leaf(lib, 3)
    with lib.profiler.profile() as prof:
        with record_function("outer"):
            with record_function("inner"):
                y = run(x)
            run(y)
        with pytest.raises(ZeroDivisionError), record_function("fails"):
            _ = 1 / 0
    run(x)  # nothing records, nothing happens
    own = [e for e in prof.events() if e.name in ("outer", "inner", "decorated", "fails")]
    outer = next(e for e in own if e.name == "outer")
    inner = next(e for e in own if e.name == "inner")
    assert outer.time_range.start <= inner.time_range.start
    assert inner.time_range.end <= outer.time_range.end
    return [(event.name, event.sequence_nr) for event in own]


@paired("Q3")
def test_averages_count_by_name_and_print_as_a_table(lib: Any) -> Any:
    x = leaf(lib, 3)
    with lib.profiler.profile() as prof:
        for _ in range(3):
            with lib.profiler.record_function("step"):
                x.exp().sum().backward()
    averages = prof.key_averages()
    (step,) = (row for row in averages if row.key == "step")
    (node,) = (
        row for row in averages if "ExpBackward0" in row.key and "evaluate_function" not in row.key
    )
    assert step.cpu_time_total > 0
    assert step.cpu_time_total / 3 == pytest.approx(step.cpu_time, rel=1e-3)
    table = averages.table(sort_by="cpu_time_total", row_limit=30)
    assert "step" in table
    assert "ExpBackward0" in table
    assert "# of Calls" in table
    assert "CPU total" in table
    return step.count, node.count


@paired("Q3")
def test_the_chrome_trace_is_json_with_the_same_ranges(lib: Any) -> Any:
    x = leaf(lib, 3)
    with lib.profiler.profile() as prof, lib.profiler.record_function("mine"):
        x.exp().sum().backward()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        prof.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())
    found = [e for e in trace["traceEvents"] if e.get("ph") == "X"]
    mine = [e for e in found if e["name"] == "mine" and e["cat"] == "user_annotation"]
    nodes = [e for e in found if "ExpBackward0" in e["name"] and "evaluate" not in e["name"]]
    assert all(event["dur"] > 0 for event in mine + nodes)
    return len(mine), len(nodes)


@paired("Q3")
def test_an_error_ends_the_profile_too(lib: Any) -> Any:
    def fails(ctx: Any, grad: Any) -> Any:
        raise KeyError("mine")

    x = leaf(lib, 3)
    custom = define(lib, double, fails)
    with pytest.raises(KeyError, match="mine"), lib.profiler.profile():
        custom.apply(x).sum().backward()
    with lib.profiler.profile() as prof:
        x.exp().sum().backward()
    return len(nodes_of(prof, "ExpBackward0"))


@paired("Q3")
def test_a_function_and_a_double_backward_have_ranges(lib: Any) -> Any:
    def slope(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * 2 * x

    x = leaf(lib, 3)
    with lib.profiler.profile() as prof:
        y = define(lib, squares, slope).apply(x.exp()).sum()
        (first,) = lib.autograd.grad(y, x, create_graph=True)
    return [len(nodes_of(prof, name)) for name in ("CustomBackward", "ExpBackward0")], first


@row("Q3")
@pytest.mark.parametrize("mode", ["local", pytest.param("process", marks=pytest.mark.process)])
def test_what_a_rule_differentiates_itself_is_not_shown(
    mode: str, request: pytest.FixtureRequest
) -> None:
    # Not with torch, whose second derivatives are rules of their own.
    def run() -> list[str]:
        x = leaf(mg, 3)
        with mg.profiler.profile() as prof:
            (first,) = mg.grad(x.exp().sum(), x, create_graph=True)
            first.sum().backward()
        return [event.name for event in prof.events() if event.kind == "node"]

    expected = [
        "SumBackward0",
        "ExpBackward0",
        "SumBackward0",
        "ExpBackwardBackward0",
        "ExpBackward0",
    ]
    if mode == "process":
        request.getfixturevalue("process_engine")
        assert run() == expected
    else:
        with mg.Engine("local"):
            assert run() == expected


@paired("Q3")
def test_the_end_can_be_handled(lib: Any) -> Any:
    seen = []
    activities = [lib.profiler.ProfilerActivity.CPU]
    x = leaf(lib, 3)
    with lib.profiler.profile(activities=activities, on_trace_ready=seen.append) as prof:
        x.exp().sum().backward()
    return len(seen), seen[0] is prof


# ---------------------------------------------------------------------- mpgrad's own: processes


@row("Q3")
@pytest.mark.process
def test_ranges_name_the_worker_and_lie_on_one_clock(process_engine: mg.Engine) -> None:
    x = mg.rand(200, 200, dtype=mg.float64, requires_grad=True)
    hooked = x.exp()
    hooked.register_hook(lambda grad: None)
    before = time.perf_counter()
    with mg.profiler.profile(record_shapes=True) as prof:
        ((hooked * x).sum() + (x * 2).tanh().sum()).backward()
    spent_us = (time.perf_counter() - before) * 1e6
    events = {event.name: event for event in prof.events() if event.kind == "node"}
    hooks = [event for name, event in events.items() if "Hook" in name]
    rules = [event for name, event in events.items() if "Hook" not in name]
    assert {event.worker for event in hooks} == {None}
    assert {event.worker for event in rules} <= {0, 1}
    assert all(0 <= e.time_range.start <= e.time_range.end <= spent_us for e in events.values())
    assert events["TanhBackward0"].input_shapes == ((200, 200),)
    (hook,) = hooks
    assert hook.time_range.end <= events["ExpBackward0"].time_range.start


@row("Q3")
@pytest.mark.process
def test_functions_on_workers_have_ranges(process_engine: mg.Engine) -> None:
    custom = define(mg, double, twice_the_gradient, run_on="worker")
    x = leaf(mg, 3)
    with mg.profiler.profile() as prof:
        custom.apply(x).sum().backward()
    (event,) = (event for event in prof.events() if event.name == "CustomBackward")
    assert event.worker is not None
    table = prof.key_averages().table()
    (line,) = (line for line in table.splitlines() if "CustomBackward" in line)
    assert line.split()[-1] == str(event.worker)


@row("Q3")
def test_profiles_do_not_nest() -> None:
    with mg.profiler.profile(), pytest.raises(RuntimeError, match="already enabled"):
        mg.profiler.profile().start()
    with pytest.raises(RuntimeError, match="not running"):
        mg.profiler.profile().stop()


@row("Q3")
def test_the_table_is_sorted_and_cut() -> None:
    x = leaf(mg, 3)
    losses = [x.exp().sum(), x.exp().sum(), x.sin().sum()]
    with mg.Engine("local"), mg.profiler.profile() as prof:
        for loss in losses:
            loss.backward()
    averages = prof.key_averages()
    lines = averages.table(sort_by="count", row_limit=1).splitlines()
    assert len(lines) == 6
    names = [line.split()[0] for line in averages.table(sort_by="count").splitlines()[3:-2]]
    assert names.index("SumBackward0") < names.index("ExpBackward0") < names.index("SinBackward0")
    keys = [line.split()[0] for line in averages.table(sort_by="key").splitlines()[3:6]]
    assert keys == ["ExpBackward0", "SinBackward0", "SumBackward0"]
    with pytest.raises(ValueError, match="sort_by is 'colour'"):
        averages.table(sort_by="colour")
