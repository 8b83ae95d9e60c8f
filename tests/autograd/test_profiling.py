"""The profiler beyond the ranges of Nodes: operators, self time, steps, memory, and the trace."""

from __future__ import annotations

import gc
import json
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd.profiling.averages import Averages
from mpgrad.autograd.profiling.function_events import events_of
from mpgrad.autograd.profiling.ranges import ANNOTATION, NODE, OPERATOR, RUNNING, WAITING, Range
from mpgrad.profiler import ProfilerAction, profile, record_function, schedule
from mpgrad.recording.dispatch.operator_mode import MODES, OperatorMode


class Twice(mg.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, grad):
        return grad * 2.0


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    yield
    assert RUNNING.recording is None
    assert not MODES.entered


def names(prof: profile, kind: str) -> list[str]:
    return [event.name for event in prof.events() if event.kind == kind]


# ---------------------------------------------------------------------- what is recorded


def test_operators_and_functions_of_forward_are_recorded() -> None:
    x = mg.ones(3, requires_grad=True)
    with profile() as prof:
        Twice.apply(x.exp()).sum()
    assert names(prof, "operator") == ["mpgrad::exp", "mpgrad::mul", "mpgrad::sum"]
    (twice,) = (event for event in prof.events() if event.kind == "function")
    assert twice.name == "Twice"
    assert [child.name for child in twice.cpu_children] == ["mpgrad::mul"]
    assert twice.cpu_children[0].cpu_parent is twice


def test_without_a_profile_no_operator_takes_another_way() -> None:
    x = mg.ones(3, requires_grad=True)
    with profile() as prof:
        assert MODES.entered
        (x * 2).sum()
    assert not MODES.entered
    (x * 2).sum().backward()
    assert len(names(prof, "operator")) == 2


def test_operators_of_all_threads_are_recorded() -> None:
    x = mg.ones(3)
    with profile() as prof:
        thread = threading.Thread(target=x.exp)
        thread.start()
        thread.join()
        x.sin()
    events = [event for event in prof.events() if event.kind == "operator"]
    assert [event.name for event in events] == ["mpgrad::exp", "mpgrad::sin"]
    assert events[0].thread != events[1].thread


def test_an_error_in_an_operator_is_the_same_with_a_profile() -> None:
    a, b = mg.ones(2), mg.ones(3)
    with pytest.raises(RuntimeError, match="must match the size") as plain:
        a + b
    with profile() as prof, pytest.raises(RuntimeError) as profiled:
        a + b
    assert str(profiled.value) == str(plain.value)
    assert names(prof, "operator") == ["mpgrad::add"]


def test_an_operator_has_the_number_of_the_node_that_it_records() -> None:
    x = mg.ones(3, requires_grad=True)
    with profile() as prof, mg.Engine("local"):
        (x.exp() * 3.0).sum().backward()
    forward = {e.name: e.sequence_nr for e in prof.events() if e.kind == "operator"}
    backward = {e.name: e.sequence_nr for e in prof.events() if e.kind == "node"}
    assert forward["mpgrad::exp"] == backward["ExpBackward0"]
    assert forward["mpgrad::mul"] == backward["MulBackward0"]


def test_an_operator_that_changes_its_input_is_recorded_with_the_number_of_its_node() -> None:
    x = mg.ones(3, requires_grad=True)
    y = x * 2.0
    with profile(profile_memory=True) as prof:
        y.add_(1.0)
        with mg.no_grad():
            y.mul_(3.0)
    added, multiplied = (event for event in prof.events() if event.kind == "operator")
    assert (added.name, multiplied.name) == ("mpgrad::add_", "mpgrad::mul_")
    assert added.sequence_nr == y.grad_fn.sequence_nr
    assert multiplied.sequence_nr == -1  # it has no Node
    assert added.cpu_memory_usage == 0  # no new memory


def test_an_operator_under_a_mode_is_recorded_too() -> None:
    x = mg.ones(3)
    with profile() as prof, OperatorMode():
        x.exp()
    assert names(prof, "operator") == ["mpgrad::exp"]


@pytest.mark.parametrize("mode", ["local", pytest.param("process", marks=pytest.mark.process)])
def test_a_profile_keeps_no_node_and_no_array(mode: str) -> None:
    x = mg.rand(100, 100, requires_grad=True)
    with mg.Engine(mode, cpu_workers=2), profile() as prof:
        y = x.exp()
        node, array = weakref.ref(y.grad_fn), weakref.ref(y._array)
        y.register_hook(lambda grad: None)
        (y * y).sum().backward()
        del y
        gc.collect()
        assert node() is None
        assert array() is None
        # What has been read meanwhile does not come twice.
        seen = len(prof.events())
    assert len(prof.events()) == seen
    assert names(prof, "node").count("ExpBackward0") == 1


def test_shapes_and_bytes_where_they_are_asked_for() -> None:
    x = mg.ones(4, 5, dtype=mg.float64, requires_grad=True)
    with mg.Engine("local"), profile(record_shapes=True, profile_memory=True) as prof:
        x.exp().reshape(20).sum().backward()
    events = {event.name: event for event in prof.events()}
    assert events["mpgrad::exp"].input_shapes == ((4, 5),)
    assert events["mpgrad::exp"].cpu_memory_usage == 160
    assert events["mpgrad::reshape"].cpu_memory_usage == 0  # a view
    assert events["ExpBackward0"].input_shapes == ((4, 5),)
    assert events["ExpBackward0"].cpu_memory_usage == 160
    table = prof.key_averages(group_by_input_shape=True).table(sort_by="cpu_memory_usage")
    assert "CPU Mem" in table
    assert "[[4, 5]]" in table


def test_a_range_has_the_bytes_of_the_ranges_inside() -> None:
    x = mg.ones(4, 5, dtype=mg.float64, requires_grad=True)
    step = mg.profiler.record_function("step")
    with mg.Engine("local"), profile(profile_memory=True) as prof, step:
        (x * x).sum().backward()
    events = {event.name: event for event in prof.events()}
    of_nodes = events["MulBackward0"].cpu_memory_usage + events["SumBackward0"].cpu_memory_usage
    assert events["backward"].cpu_memory_usage == of_nodes > 0
    assert events["step"].cpu_memory_usage == of_nodes + 160 + 8  # with the product and the sum
    assert [e.name for e in prof.events() if e.self_cpu_memory_usage < 0] == []


def test_optimizers_and_loaders_have_ranges() -> None:
    x = mg.ones(4, 1, requires_grad=True)
    data = mg.data.DataLoader(mg.data.TensorDataset(mg.ones(4, 1)), batch_size=2)
    optimizer = mg.optim.SGD([x], lr=0.1)
    with profile() as prof:
        for (batch,) in data:
            (x[:2] * batch).sum().backward()
            optimizer.step()
    found = names(prof, "annotation")
    assert found.count("Optimizer.step#SGD.step") == 2
    assert found.count("enumerate(DataLoader)#DataLoader.__next__") == 3  # the last finds the end


def test_a_graph_that_was_compiled_has_the_same_ranges() -> None:
    x = mg.ones(3, requires_grad=True)
    found = []
    with mg.Engine("local"):
        for _ in range(6):
            y = (x.exp() * x).sum()
            with profile() as prof:
                y.backward()
            found.append(names(prof, "node"))
    assert found == [["SumBackward0", "MulBackward0", "ExpBackward0"]] * 6


def test_options_that_record_nothing_say_so() -> None:
    with pytest.warns(UserWarning, match="with_stack=True"):
        profile(with_stack=True)


# ---------------------------------------------------------------------- self time


def ranges(*spans: tuple[str, str, float, float]) -> list[Range]:
    return [Range(kind, name, start, end, thread=1) for kind, name, start, end in spans]


def test_self_time_leaves_out_what_lies_inside() -> None:
    events = events_of(
        ranges(
            (ANNOTATION, "step", 0.0, 10.0),
            (OPERATOR, "mul", 1.0, 3.0),
            (ANNOTATION, "inner", 4.0, 9.0),
            (NODE, "MulBackward0", 5.0, 7.0),
        ),
        0.0,
    )
    own = {event.name: event.self_cpu_time_total / 1e6 for event in events}
    assert own == {"step": 3.0, "mul": 2.0, "inner": 3.0, "MulBackward0": 2.0}
    averages = Averages.of(events)
    assert averages.total_average().self_cpu_time_total == 10.0 * 1e6
    assert averages.table().endswith("Self CPU time total: 10.000s")


def test_one_range_inside_another_of_its_name_counts_once() -> None:
    (row,) = Averages.of(
        events_of(ranges((ANNOTATION, "a", 0.0, 4.0), (ANNOTATION, "a", 1.0, 2.0)), 0.0)
    )
    assert (row.count, row.cpu_time_total / 1e6, row.self_cpu_time_total / 1e6) == (2, 4.0, 4.0)


def test_waiting_is_nobodys_time() -> None:
    averages = Averages.of(
        events_of(
            ranges((ANNOTATION, "step", 0.0, 4.0), (WAITING, "wait for workers", 1.0, 4.0)), 0.0
        )
    )
    assert [row.key for row in averages] == ["step"]
    assert averages.total_average().self_cpu_time_total == 1.0 * 1e6


def test_ranges_of_workers_do_not_lie_inside_those_of_threads() -> None:
    found = ranges((ANNOTATION, "step", 0.0, 4.0), (NODE, "MulBackward0", 1.0, 2.0))
    found[1] = found[1]._replace(worker=0)
    step, node = events_of(found, 0.0)
    assert node.cpu_parent is None
    assert step.self_cpu_time_total == 4.0 * 1e6


# ---------------------------------------------------------------------- steps


def test_a_schedule_says_what_to_do_in_each_step() -> None:
    action = schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=2)
    none, warm = ProfilerAction.NONE, ProfilerAction.WARMUP
    record, save = ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE
    cycle = [none, warm, record, save]
    assert [action(step) for step in range(11)] == [none, *cycle, *cycle, none, none]


@pytest.mark.torch
def test_a_schedule_is_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    for options in (
        {"wait": 1, "warmup": 1, "active": 3, "repeat": 2},
        {"wait": 0, "warmup": 1, "active": 1},
        {"wait": 2, "warmup": 1, "active": 1, "skip_first": 3},
        {"wait": 2, "warmup": 1, "active": 2, "skip_first": 1, "skip_first_wait": 1},
    ):
        ours, theirs = schedule(**options), torch.profiler.schedule(**options)
        actions = [ours(step).name for step in range(20)]
        assert actions == [theirs(step).name for step in range(20)]


@pytest.mark.parametrize("options", [{"active": 0}, {"wait": -1}, {"repeat": -1}])
def test_a_schedule_that_cannot_be_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="active > 0"):
        schedule(**{"wait": 0, "warmup": 0, "active": 1, **options})


def test_only_the_steps_of_a_cycle_are_recorded_and_each_is_handed_over() -> None:
    handed: list[list[str]] = []

    def ready(prof: profile) -> None:
        handed.append(names(prof, "annotation"))

    x = mg.ones(2)
    with profile(schedule=schedule(wait=1, warmup=1, active=2), on_trace_ready=ready) as prof:
        for step in range(9):
            with record_function(f"mine {step}"):
                x.exp()
            prof.step()
    assert handed == [
        ["ProfilerStep#2", "mine 2", "ProfilerStep#3", "mine 3"],
        ["ProfilerStep#6", "mine 6", "ProfilerStep#7", "mine 7"],
    ]
    assert prof.step_num == 9
    assert names(prof, "annotation") == handed[-1]


def test_cycles_may_follow_one_another_and_the_last_may_be_cut() -> None:
    counts = []
    with profile(
        schedule=schedule(wait=0, warmup=0, active=2),
        on_trace_ready=lambda prof: counts.append(len(names(prof, "annotation"))),
    ) as prof:
        for _ in range(4):
            prof.step()
    assert counts == [2, 2, 1]


def test_a_profile_that_does_not_run_takes_no_step() -> None:
    with pytest.raises(RuntimeError, match="not running"):
        profile().step()


# ---------------------------------------------------------------------- the trace


def trace_of(prof: profile, path: Path) -> list[dict[str, Any]]:
    prof.export_chrome_trace(str(path))
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    for event in events:
        assert {"ph", "pid", "tid"} <= event.keys() or event["ph"] in "be"
        assert event["ph"] == "M" or event["ts"] > -1
    return events


def test_the_trace_has_arrows_from_operators_to_nodes_and_between_nodes(tmp_path: Path) -> None:
    x = mg.ones(3, requires_grad=True)
    with mg.Engine("local"), profile() as prof:
        (x.exp() * x).sum().backward()
    trace = trace_of(prof, tmp_path / "trace.json")
    starts = {e["id"]: e for e in trace if e["ph"] == "s"}
    ends = {e["id"]: e for e in trace if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert all(starts[number]["ts"] <= ends[number]["ts"] for number in starts)
    kinds = [e["name"] for e in starts.values()]
    assert kinds.count("fwdbwd") == 3
    assert kinds.count("gradient") == 2  # Sum -> Mul -> Exp; leaves run no rule


def test_metadata_stand_in_the_trace(tmp_path: Path) -> None:
    with profile() as prof:
        mg.ones(1).exp()
    prof.add_metadata("who", "me")
    prof.add_metadata_json("figures", "[1, 2]")
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    found = json.loads((tmp_path / "trace.json").read_text())
    assert (found["who"], found["figures"]) == ("me", [1, 2])


def test_each_trace_gets_a_file_of_its_own(tmp_path: Path) -> None:
    handler = mg.profiler.tensorboard_trace_handler(str(tmp_path / "new"), "w")
    with profile(schedule=schedule(wait=0, warmup=0, active=1), on_trace_ready=handler) as prof:
        mg.ones(1).exp()
        prof.step()
    files = sorted((tmp_path / "new").iterdir())
    assert len(files) == 2
    assert all(file.name.endswith(".pt.trace.json") for file in files)


@pytest.mark.process
def test_the_trace_of_workers_names_processes_tasks_and_counters(tmp_path: Path) -> None:
    x = mg.rand(100, 100, dtype=mg.float64, requires_grad=True)
    with mg.Engine("process", cpu_workers=2) as engine:
        with profile() as prof:
            mg.stack([(x * k).exp().sum() for k in range(1, 9)]).sum().backward()
        pids, coordinator = engine.worker_pids(), engine.coordinator_pid
    (run,) = prof.recording.backwards
    assert run.mode == "process"
    assert run.plan is not None
    assert sorted(task.task for task in run.tasks) == list(range(len(run.plan.tasks)))
    assert all(run.started <= task.started <= task.ended <= run.ended for task in run.tasks)
    assert all(item.ready <= item.run.started for item in run.queued())

    trace = trace_of(prof, tmp_path / "trace.json")
    processes = {e["args"]["name"]: e["pid"] for e in trace if e["name"] == "process_name"}
    assert processes["mpgrad client"] == os.getpid()
    assert processes["mpgrad coordinator"] == coordinator
    used = {name: pid for name, pid in processes.items() if "worker" in name}
    assert set(used.values()) <= set(pids)
    tasks = [e for e in trace if e.get("cat") == "task"]
    assert {e["pid"] for e in tasks} == set(used.values())
    assert all(e["args"]["attempt"] == 1 and e["args"]["Queue wait (us)"] >= 0 for e in tasks)
    nodes = [e for e in trace if e["ph"] == "X" and e["name"] == "ExpBackward0"]
    assert len(nodes) == 8
    assert all(e["args"]["task"] >= 0 for e in nodes)
    counters = {e["name"]: e["args"] for e in trace if e["ph"] == "C"}  # their last values
    assert counters["ready tasks"] == {"tasks": 0}
    assert counters["outstanding tasks"] == {"tasks": 0}
    assert counters["gradients between tasks"] == {"bytes": 0}
    begun = [e["id"] for e in trace if e["ph"] == "b"]
    assert sorted(begun) == sorted(e["id"] for e in trace if e["ph"] == "e")
