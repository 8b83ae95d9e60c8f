"""What the probes count is what they say: live bytes, small graphs, networks; nothing is timed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mpgrad as mg
from benchmarks.fresh import call
from benchmarks.probes.hops import timeline
from benchmarks.probes.live_bytes import peak_live_bytes
from benchmarks.residual_network import resnet18
from benchmarks.rounds import Effort, WrongGradient, measure
from benchmarks.workloads import scale

ROOT = Path(__file__).resolve().parents[2]


def test_live_bytes_of_a_product_and_a_relu():
    kilobyte = 256
    x = mg.tensor(np.ones((256, 512), np.float32))  # 512 KiB
    w = mg.tensor(np.ones((512, 512), np.float32), requires_grad=True)  # 1 MiB
    root = mg.relu(x @ w).mean()
    # While relu's rule runs: both tensors, relu's result, and the gradients before and behind it.
    # While matmul's runs: both, and the gradient of 512 KiB and w's of 1 MiB. Both are 3 MiB.
    assert peak_live_bytes(root, [x, w]) == 3 * 4 * kilobyte * 1024
    root.backward()
    assert w.grad is not None, "the graph can still be used"


def test_views_of_one_saved_block_count_once():
    x = mg.tensor(np.ones((1024,), np.float32), requires_grad=True)
    y = x * 2.0
    root = (y * y.reshape(32, 32).reshape(1024)).sum()
    # x and y; the seed; the gradient of the product; two contributions to y's, from two nodes.
    alive = peak_live_bytes(root, [x])
    assert alive <= 5 * 4096 + 4
    assert alive >= 4 * 4096


@pytest.mark.slow
@pytest.mark.process
def test_small_nodes_are_measured_in_another_interpreter():
    found = [
        call("probes.small_nodes.small_nodes", who, "wide", 50) for who in ("process", "local")
    ]
    for one in found:
        assert one["seconds"] > 0.0
        assert one["gradient"] == [2.0 * 48] * 8
    assert found[1]["coordinator_bytes"] == 0


@pytest.mark.slow
@pytest.mark.process
def test_simulated_hosts_get_both_passes_of_each_item():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.probes.many_hosts", "2"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    head, line = done.stdout.splitlines()
    found = dict(zip(head.split(), line.replace(" us", "").split(), strict=True))
    assert (found["hosts"], found["items"]) == ("2", "32")
    assert float(found["messages"]) >= 2 * 32 / 4  # of four calls at most


@pytest.mark.slow
@pytest.mark.process
def test_the_way_of_a_task_is_found_in_all_processes():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.probes.way_of_a_task"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    _, _, _, _, head, client, coordinator, worker = done.stdout.splitlines()
    assert head.startswith("repeated: ")
    assert " engine/session.py " in client
    assert " coordinator/coordinator.py " in coordinator
    assert " workers/task.py " in worker


def test_a_call_that_fails_says_so(capfd):
    with pytest.raises(subprocess.CalledProcessError):
        call("probes.small_nodes.small_nodes", "local", "no such shape", 50)
    assert "no such shape" in capfd.readouterr().err


def samples_by(who, seconds, nbytes=0, gradient=(1.0,)):
    return {
        "seconds": seconds,
        "graph_bytes": nbytes,
        "client_bytes": nbytes,
        "coordinator_bytes": nbytes,
        "gradient": list(gradient),
    }


@pytest.fixture
def calls(monkeypatch):
    """Graphs of a million nodes take 100 us a node in process mode, and all others none."""
    made = []

    def fake(_, who, shape, nodes):
        made.append((who, shape, nodes))
        return samples_by(who, nodes * 1e-4 if who == "process" else 1e-9, nodes * 100)

    monkeypatch.setattr(scale, "call", fake)
    monkeypatch.setattr(scale, "is_installed", lambda module: module == "mpgrad")
    return made


@pytest.mark.slow
def test_sizes_that_would_take_too_long_are_left_out(calls):
    results = {case.name: measure(case, Effort()) for case in scale.cases(False)}
    assert ("process", "chain", 100_000) in calls
    assert ("process", "chain", 1_000_000) not in calls
    assert ("local", "chain", 1_000_000) in calls
    large = results["chain, 1,000,000 nodes"]
    assert large.remarks["mpgrad process"] == "left out: about 100 s"
    memory = results["chain, 100,000 nodes, memory"]
    assert memory.samples["mpgrad coordinator, peak"] == pytest.approx([100.0])
    assert len([c for c in calls if c == ("process", "chain", 100_000)]) == 1, "measured once"


@pytest.mark.slow
def test_scale_compares_gradients(calls, monkeypatch):
    def wrong(_, who, shape, nodes):
        return samples_by(who, 1e-9, gradient=[1.0 if who == "local" else 2.0])

    monkeypatch.setattr(scale, "call", wrong)
    with pytest.raises(WrongGradient):
        [measure(case, Effort()) for case in scale.cases(False)]


@pytest.mark.slow
def test_the_networks_are_those_of_the_papers():
    """Torchvision's ResNet-18 has 11,689,512 parameters; the one for CIFAR 11,173,962."""
    for is_small, expected in ((False, 11_689_512), (True, 11_173_962)):
        model = resnet18(mg, is_small=is_small)
        assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_a_backward_is_cut_where_the_next_process_begins():
    client = [
        ("execute begins", 1.0),
        ("client sends GraphSubmitted 9", 3.0),
        ("client woken", 30.0),
    ]
    client += [("execute ends", 33.0), ("end", 34.0)]
    coordinator = [("coordinator gets GraphSubmitted", 5.0)]
    coordinator += [("coordinator sends DispatchNodeTask 9", 6.0)] * 2
    coordinator += [("coordinator gets NodeTaskDone", at) for at in (20.0, 25.0)]
    coordinator += [("coordinator sends CompleteGraph 9", 26.0)]
    fast = [("worker woken", 7.0), ("rule begins", 8.0), ("rule ends", 17.0)]
    fast += [("worker sends NodeTaskDone 9", 18.0)]
    slow = [("worker woken", 8.0), ("rule begins", 10.0), ("rule ends", 13.0)]
    slow += [("rule begins", 14.0), ("rule ends", 22.0), ("worker sends NodeTaskDone 9", 23.0)]
    rows = timeline([client, coordinator, fast, slow], 0.0, 34.0)
    assert rows is not None
    *hops, total, rules, fixed, at_once = [round(us / 1e6) for us in rows.values()]
    assert hops == [1, 2, 2, 1, 2, 2, 12, 1, 2, 1, 4, 3, 1], "the worker that ends last counts"
    assert (total, rules, fixed, at_once) == (34, 11, 23, 7)
    assert sum(hops) == total
    assert timeline([client, coordinator, [], []], 0.0, 34.0) is None, "no worker was needed"


@pytest.mark.long
@pytest.mark.process
def test_the_hops_of_a_backward_are_found_in_all_processes():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.probes.hops", "--milliseconds=0", "--backwards=4"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line[:45].strip(): line[45:].split() for line in done.stdout.splitlines()}
    assert [float(figure) > 0 for figure in rows["coordinator -> worker"]] == [True, True]
    assert [float(figure) >= 4 for figure in rows["messages"]] == [True, True]
