"""The page about a profile: its figures, its advice, and what a browser makes of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd.profiling.backward_run import BackwardRun, TaskRun
from mpgrad.autograd.profiling.ranges import FUNCTION, NODE, OPERATOR, Range, Recording
from mpgrad.engine.report.advice import advice_for
from mpgrad.engine.report.analysis import (
    CLIENT,
    HAND_OVER,
    QUEUES,
    SERIAL,
    figures_of,
    shares_of,
    step_of,
)
from mpgrad.scheduler.graph_spec import GraphSpec, NodeSpec, serial_order
from mpgrad.scheduler.plan import plan

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Steps(mg.Function):
    """Some work in Python."""

    @staticmethod
    def forward(ctx, x, steps):
        ctx.steps = steps
        return x * 2.0

    @staticmethod
    def backward(ctx, grad):
        decay = 1.0
        for _ in range(ctx.steps):
            decay = decay * 0.999999 + 1e-7
        return grad * 2.0 * decay, None


# ---------------------------------------------------------------------- figures


def node(name: str, number: int, *targets: int) -> NodeSpec:
    edges = tuple((target, 0) for target in targets)
    return NodeSpec(name, number, edges, (100_000,), 10_000.0)


def recorded(
    nodes: list[NodeSpec], runs: list[tuple[int, int, float, float]], workers: int = 2
) -> Recording:
    """A backward of ten seconds; ``runs``: Node, worker, start, end; each is a task."""
    order = serial_order(nodes, ((0, 0),))
    last = (len(nodes) - 1, 0)
    spec = GraphSpec(tuple(nodes), ((0, 0),), (last,), order)
    planned = plan(spec, workers=workers, message_us=1.0)
    run = BackwardRun(0, spec, 0.0, 10.0, "process", plan=planned, workers=workers, submitted=1.0)
    recording = Recording(with_shapes=False, with_memory=False)
    recording.origin, recording.ended = 0.0, 10.0
    recording.backwards.append(run)
    for at, worker, start, end in runs:
        task = planned.task_of[at]
        run.tasks.append(TaskRun(task, worker, 1, start, end))
        recording.ranges.append(
            Range(NODE, nodes[at].name, start, end, 1, worker, backward=0, node=at, task=task)
        )
    return recording


def advice_of(recording: Recording) -> list[str]:
    figures, shares = figures_of(recording), shares_of(recording)
    return advice_for(figures, shares, step_of(recording, figures, shares))


#: One Node, two beside each other, one behind them.
DIAMOND = [node("a", 3, 1, 2), node("b", 2, 3), node("c", 1, 3), node("d", 0)]


def test_work_chain_and_bounds_come_from_what_was_measured() -> None:
    recording = recorded(DIAMOND, [(0, 0, 1, 2), (1, 0, 2, 6), (2, 1, 2, 4), (3, 0, 6, 9)])
    (one,) = figures_of(recording)
    assert (one.took, one.work, one.chain) == (10.0, 10.0, 8.0)
    assert one.path == [0, 1, 3]
    assert (one.speed_up, one.bound) == (1.0, 1.25)


def test_idle_times_have_causes_and_add_up() -> None:
    # From 4 to 5 task d is ready and nobody has begun it; from 2 to 4 one worker has nothing.
    recording = recorded(DIAMOND, [(0, 0, 1, 2), (1, 0, 2, 4), (2, 1, 2, 3), (3, 0, 5, 9)])
    (one,) = figures_of(recording)
    assert one.busy + sum(one.idle.values()) == pytest.approx(2 * one.took)
    assert one.idle[HAND_OVER] == pytest.approx(2.0)
    assert one.idle[QUEUES] == pytest.approx(2.0)
    assert one.idle[SERIAL] == pytest.approx(1 + 1 + 4)  # a worker beside a, behind c, beside d


def test_while_this_process_runs_a_task_the_workers_wait_for_it() -> None:
    recording = recorded(DIAMOND, [(0, -1, 1, 5), (1, 0, 5, 9), (2, 1, 5, 9), (3, 0, 9, 10)])
    (one,) = figures_of(recording)
    assert one.idle[CLIENT] == pytest.approx(8.0)
    recording.backwards[0].on_client = {0: "in A, `ctx.camera` is a Camera, which can change"}
    found = [text for text in advice_of(recording) if "ctx.camera" in text]
    assert [text[:48] for text in found] == ["For 40 % of their time the workers wait for hook"]


def test_the_calling_thread_counts_as_one_of_the_workers_in_its_part() -> None:
    recording = recorded(DIAMOND, [(0, -1, 0, 1), (1, -1, 1, 9), (2, 1, 2, 9), (3, 0, 9, 10)])
    (run,) = recording.backwards
    assert run.plan is not None
    run.plan = run.plan._replace(local_share=run.plan.task_of[1])
    (one,) = figures_of(recording)
    assert one.idle[CLIENT] == 0.0
    assert one.busy == pytest.approx(8 + 7 + 1)


def forward(name: str, kind: str, start: float, end: float, worker: int = -1) -> Range:
    return Range(kind, name, start, end, 1, worker)


def test_the_step_is_bound_by_amdahls_law() -> None:
    # Three seconds of forward in this process; a map of two in workers, whose calls take three.
    runs = [(0, 0, 5.5, 6), (1, 0, 6, 9), (2, 1, 6, 9), (3, 0, 9, 9.5)]
    recording = recorded(DIAMOND, runs)
    (run,) = recording.backwards
    run.started = run.submitted = 5.0
    recording.ranges.extend(
        [
            forward("mpgrad::mul", OPERATOR, 0, 3),
            forward("parallel_map(f)", FUNCTION, 3, 5),
            forward("f", FUNCTION, 3, 5, worker=0),
            forward("f", FUNCTION, 3, 4, worker=1),
        ]
    )
    figures, shares = figures_of(recording), shares_of(recording)
    step = step_of(recording, figures, shares)
    assert (step.serial, step.parallel, step.took, step.workers) == (3.0, 3 + 7, 10.0, 2)
    assert step.share == pytest.approx(10 / 13)
    assert step.limit(2) == pytest.approx(1 / (3 / 13 + 10 / 13 / 2))
    assert step.limit(1e9) == pytest.approx(13 / (3 + 4))  # the chain of the backward
    assert step.reached == pytest.approx(1.3)
    assert advice_of(recording)[0] == (
        "77 % of the work can be divided among workers, so the step can become at most 1.62 times "
        "as fast with 2 of them, and 1.86 times with any number. It was 1.30 times as fast as in "
        "one process."
    )


def test_a_map_in_this_process_is_work_for_workers() -> None:
    recording = recorded(DIAMOND, [(0, 0, 5.5, 6), (1, 0, 6, 9), (2, 1, 6, 9), (3, 0, 9, 9.5)])
    recording.backwards[0].started = 5.0
    recording.ranges.extend(
        [
            forward("parallel_map(f)", FUNCTION, 0, 5),
            forward("f", FUNCTION, 0, 2),
            forward("f", FUNCTION, 2, 4.5),
        ]
    )
    figures, shares = figures_of(recording), shares_of(recording)
    step = step_of(recording, figures, shares)
    assert (step.serial, step.parallel, step.maps) == (0.0, 4.5 + 7, 5.0)
    assert "is forward, which runs in this process" not in " ".join(advice_of(recording))


def test_waiting_for_a_core_is_told_from_waiting_for_messages() -> None:
    recording = recorded(DIAMOND, [(0, 0, 1, 2), (1, 0, 3, 6), (2, 1, 3, 5), (3, 0, 7, 9)])
    (run,) = recording.backwards
    text = " ".join(advice_of(recording))
    assert "for messages, although tasks are ready" in text
    assert "free core" not in text
    run.core_wait = 8.0
    text = " ".join(advice_of(recording))
    assert "For 40 % of their time the workers wait for a free core" in text
    assert "for messages" not in text


def test_a_chain_is_told_from_branches() -> None:
    chain = recorded(
        [node("a", 2, 1), node("b", 1, 2), node("c", 0)],
        [(0, 0, 1, 4), (1, 0, 4, 7), (2, 0, 7, 9.8)],
    )
    text = " ".join(advice_of(chain))
    assert "88 % of the backward time is one chain" in text
    assert "more workers do not help" in text


def test_a_profile_without_a_backward_says_so() -> None:
    with mg.profiler.profile() as prof:
        mg.ones(3).exp()
    found = advice_of(prof.recording)
    assert found == ["No backward ran in this profile: put backward() into its block."]


def test_why_a_backward_ran_here_is_in_the_advice() -> None:
    x = mg.ones(3, requires_grad=True)
    with mg.Engine("local"), mg.profiler.profile() as prof:
        x.exp().sum().backward()
    text = " ".join(advice_of(prof.recording))
    assert "1 of 1 backward passes ran in this process" in text
    assert 'Engine(mode="local")' in text


def test_nothing_to_report_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mpgrad.autograd.profiler._latest", None)
    with pytest.raises(RuntimeError, match="nothing has been profiled"):
        mg.profiler.report(tmp_path / "page.html")


# ---------------------------------------------------------------------- the page


class Reader(HTMLParser):
    """Collects what a page loads, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value for name, value in attrs if name in ("src", "href") and value]


def profiled(path: Path) -> Path:
    """The page about two backwards in workers, of branches with an evil name."""
    x = mg.ones(3, requires_grad=True)
    with mg.Engine("process", cpu_workers=2):
        with mg.profiler.profile():
            for _ in range(2):
                with mg.profiler.record_function("</script><b>forward"):
                    loss = mg.stack([Steps.apply(x * k, 3000).sum() for k in range(4)]).sum()
                loss.backward()
        mg.profiler.report(path)
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return profiled(tmp_path_factory.mktemp("report") / "page.html")


@pytest.mark.process
def test_the_page_needs_nothing_else(page: Path) -> None:
    text = page.read_text()
    reader = Reader()
    reader.feed(text)
    assert reader.loads == []
    assert re.findall(r"(?:url\(|@import|fetch\(|XMLHttpRequest)", text) == []
    assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "<!--" not in text  # every part was filled in


@pytest.mark.process
def test_the_page_holds_what_was_recorded(page: Path) -> None:
    text = page.read_text()
    (raw,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    data: dict[str, Any] = json.loads(raw)
    assert [one["mode"] for one in data["backwards"]] == ["process", "process"]
    assert "worker 0" in data["rows"]
    assert "worker 1" in data["rows"]
    names = {found[1] for found in data["ranges"]}
    assert {"StepsBackward", "</script><b>forward", "hand over", "Steps"} <= names
    assert "StepsBackward" in text.split('<div class="view graph fits">')[1]


@pytest.mark.process
def test_the_calls_of_a_map_lie_on_the_lanes_of_workers(tmp_path: Path) -> None:
    def called(x: mg.Tensor) -> mg.Tensor:
        return x.exp().sum()

    xs = [mg.ones(3, requires_grad=True) for _ in range(4)]
    with mg.Engine("process", cpu_workers=2), mg.profiler.profile():
        mg.stack(mg.parallel_map(called, xs)).sum().backward()
    mg.profiler.report(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    (raw,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    ranges = json.loads(raw)["ranges"]
    lanes = [row[2] for row in ranges if row[0] == "function" and row[1].endswith("called")]
    assert len(lanes) == 4
    assert set(lanes) <= {"worker 0", "worker 1"}
    assert "with 2 of them" in text


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_draws_the_page_without_an_error(page: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         "--enable-logging=stderr", "--virtual-time-budget=2000",
         f"--user-data-dir={tmp_path}", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    # The script's last line sets this.
    assert 'data-ready="3"' in done.stdout
    assert "CONSOLE" not in done.stderr.replace("CONSOLE)]", "CONSOLE")
    assert done.stdout.count("<td>workers</td>") == 2


@pytest.mark.process
def test_mpgrad_run_profiles_a_script(tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out.html"
    script.write_text(
        "import sys\nimport mpgrad as mg\n"
        "x = mg.ones(3, requires_grad=True)\nx.exp().sum().backward()\nsys.exit(3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mpgrad", "run", "--cpu-workers", "1", "--profile", out, script],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert f"the profile is in {out}" in done.stderr
    assert "ExpBackward0" in out.read_text()


def test_a_profile_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('ran')\n")
    done = subprocess.run(
        [sys.executable, "-m", "mpgrad", "run", "--cpu-workers", "1", "--profile",
         tmp_path / "absent" / "out.html", script],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot write" in done.stderr
