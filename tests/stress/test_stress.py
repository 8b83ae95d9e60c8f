"""The stress runs' own honesty: they pass where all is well and fail where something is wrong."""

from __future__ import annotations

import hmac
import json
import random
import re
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.coordinator.coordinator import Coordinator
from mpgrad.errors import ProtocolError
from mpgrad.scheduler.task_dispatch import TaskDispatch
from simulation import __main__ as testing
from stress import (
    chaos,
    deep,
    elastic,
    files,
    functions,
    hostile,
    hosts,
    killer,
    operators,
    simulation,
    soak,
)
from stress.__main__ import main
from stress.fuzz_core import fuzz
from stress.fuzz_worker import fuzz_worker
from stress.load import Training
from stress.page import write_row
from stress.run import Verdict
from tests.leftovers import Leftovers, left_since


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", ["chaos", "calls"])
def test_chaos_passes(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main([name, "--kills", "2", "--coordinators", "1", "--seed", "7"]) == 0
    first, verdict = capsys.readouterr().out.splitlines()
    assert "--seed 7" in first
    assert verdict.startswith(f"{name}: PASSED: 2 workers killed (")
    assert "1 coordinators killed (" in verdict
    assert "0 wrong gradients" in verdict


@pytest.mark.process
@pytest.mark.slow
def test_chaos_notices_a_wrong_gradient(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = chaos._fingerprints
    monkeypatch.setattr(chaos, "_fingerprints", lambda *load: [*real(*load)[:-1], "another"])
    assert main(["chaos", "--kills", "1", "--seed", "7"]) == 1
    assert "chaos: FAILED" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.slow
def test_chaos_notices_a_worker_that_is_not_replaced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(killer, "_kill", lambda pid: True)
    assert main(["chaos", "--kills", "1", "--seed", "7"]) == 1
    assert "1 workers were not replaced" in capsys.readouterr().out


@pytest.mark.slow
def test_a_step_is_repeated_after_an_error_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed, training = Training(3), Training(3)
    expected = [undisturbed.step() for _ in range(2)]
    real, failures = mg.Tensor.backward, [ValueError("now"), ValueError("and again")]

    def backward(tensor: mg.Tensor) -> None:
        if failures:
            raise failures.pop()
        real(tensor)

    monkeypatch.setattr(mg.Tensor, "backward", backward)
    found = [training.step(allow=lambda error: isinstance(error, ValueError)) for _ in range(2)]
    assert (found, training.repeated) == (expected, 2)
    failures.append(ValueError("not allowed"))
    with pytest.raises(ValueError, match="not allowed"):
        training.step()


@pytest.mark.slow
def test_the_load_is_the_same_every_time() -> None:
    first, second = Training(3), Training(3)
    assert [first.step() for _ in range(2)] == [second.step() for _ in range(2)]
    assert Training(4).step() != Training(3).step()


@pytest.mark.process
@pytest.mark.slow
def test_soak_counts_wrong_gradients_and_what_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # So few backwards are all warm-up: whether memory grows is the long run's question.
    monkeypatch.setattr(soak, "GROWTH_MAX", 10.0)  # it is too short to judge
    assert main(["soak", "--backwards", "40", "--seed", "7"]) == 0
    verdict = capsys.readouterr().out.splitlines()[-1]
    for words in ("PASSED: 40 backwards", "0 wrong", "nothing left"):
        assert words in verdict
    grown = re.search(r"descriptors (\S+) %", verdict)
    assert grown is not None
    assert float(grown[1]) <= 0.0  # another test's may have been closed meanwhile
    monkeypatch.setattr(soak.Cubes, "backward", lambda ctx, grad: (grad.numpy() * 3, None))
    assert main(["soak", "--backwards", "10", "--seed", "7"]) == 1
    assert "0 wrong" not in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.slow
def test_soak_runs_both_passes_of_torch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(soak, "GROWTH_MAX", 10.0)  # it is too short to judge
    assert main(["soak", "--torch", "--backwards", "20", "--seed", "7"]) == 0
    assert ", 0 wrong; growth" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.slow
def test_soak_lasts_as_long_as_it_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "GROWTH_MAX", 10.0)  # it is too short to judge
    assert main(["soak", "--hours", "0.0003", "--seed", "7"]) == 0
    said = re.search(r"PASSED: (\d+) backwards in \d+ s, 0 wrong", capsys.readouterr().out)
    assert said is not None
    assert int(said[1]) > 0


@pytest.mark.process
@pytest.mark.slow
def test_branches_that_stay_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "GROWTH_MAX", 10.0)  # it is too short to judge
    monkeypatch.setattr(soak, "BRANCHES_MAX", -1)
    assert main(["soak", "--backwards", "10", "--seed", "7"]) == 1


@pytest.mark.parametrize(("page", "grows"), [(1_000, False), (3_000, True)])
def test_soak_sees_arenas_that_grow(page: int, grows: bool) -> None:
    looks = [soak.Look((1, 1, 1), (1,), (0, 0), 2_000_000 + at * page, 0) for at in range(100)]
    assert (soak.growths(looks)["arenas"] > soak.GROWTH_MAX) == grows


def test_soak_sees_growth() -> None:
    def look(number: int) -> soak.Look:
        return soak.Look((1000, 500, 400, 400), (20, 30), (7, number // 20 * leak), 4096, 0)

    for leak in (1, 3):
        found = soak.growths([look(number) for number in range(100)])
        assert found["client"] == found["arenas"] == found["descriptors"] == 0.0
        assert found["live blocks"] == pytest.approx(4 * leak / (soak.BLOCKS + 7))
        assert (found["live blocks"] > soak.GROWTH_MAX) == (leak == 3)
        steps = soak.medians([look(number) for number in range(100)], "live blocks", 5)
        assert steps == [soak.BLOCKS + 7 + leak * number for number in range(5)]


@pytest.mark.process
@pytest.mark.slow
def test_storm_passes(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--threads", "6", "--clients", "1", "--backwards", "1", "--seed", "7"]
    assert main(["storm", *arguments]) == 0
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict.startswith("storm: PASSED: 6 threads and 1 client processes at once, 7 back")
    assert "0 of 7 trainings wrong" in verdict


@pytest.mark.process
@pytest.mark.slow
def test_hosts_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hosts", "--kills", "1", "--frames", "200", "--seed", "7"]) == 0
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict.startswith("hosts: PASSED: 1 ranks killed and 0 stopped, of 3, in 1 programs; ")
    assert verdict.endswith(" 200 frames of strangers, 0 faults; nothing left")


@pytest.mark.process
@pytest.mark.slow
def test_files_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["files", "--files", "500", "--seed", "7"]) == 0
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert re.search(r"PASSED: 500 files, \d\d loaded and used, \d+ refused, 0 faults", verdict)


def test_files_counts_a_process_that_dies_as_one_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {
        ("7", "0", "5"): ["status -11", "loaded", "refused"],
        ("7", "3", "2"): ["status 0", "refused", "fault: MemoryError: "],
    }
    monkeypatch.setattr(files, "_lines", lambda words: said[tuple(words)])
    assert main(["files", "--files", "5", "--seed", "7"]) == 1
    _, *faults, verdict = capsys.readouterr().out.splitlines()
    assert faults == [
        "file 2: fault: the process ended: status -11",
        "file 4: fault: MemoryError: ",
    ]
    assert "FAILED: 5 files, 1 loaded and used, 2 refused, 2 faults" in verdict


@pytest.mark.process
@pytest.mark.slow
def test_elastic_passes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic, "STEPS", 60)
    monkeypatch.setattr(elastic, "LIFE_S", 1.0)
    assert main(["elastic", "--kills", "1", "--seed", "7"]) == 0
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict == "elastic: PASSED: 1 ranks killed in 1 programs of 3; 0 faults; nothing left"


def test_elastic_notices_other_bits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic, "_ends", lambda seed, deaths, chance: ["ab"] * (3 - len(deaths)))
    assert main(["elastic", "--kills", "1", "--seed", "7"]) == 1
    assert "elastic: FAILED" in capsys.readouterr().out


def test_hosts_notices_what_a_rank_does_not_say() -> None:
    tally = hosts.Tally()
    other = "[rank 2] lost 0 9 rank 0 is lost: it has left the group after rank 1 was lost\n"
    hosts._judge(7, 1, ["[rank 0] lost 1 8 rank 1 is lost\n", other], tally)
    assert (tally.rounds, tally.faults) == (17, [])
    hosts._judge(7, 1, ["[rank 0] wrong an average is wrong in round 3\n"], tally)
    assert len(tally.faults) == 2
    assert "wrong an average" in tally.faults[0]


@pytest.mark.process
@pytest.mark.slow
def test_fuzz_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "--frames", "8000", "--seed", "7"]) == 0
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict.startswith("fuzz: PASSED: 6,400 frames in one process")
    assert "800 wrong tasks to a worker (" in verdict
    assert "800 over the sockets of a training engine (800 refused" in verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    [
        (hmac, "compare_digest", lambda token, own: True),
        (Coordinator, "_has_greeted", lambda self, arrival: True),
        (Coordinator, "_cut_off", lambda self, arrival, error: None),
    ],
)
def test_fuzz_finds_a_planted_hole(
    owner: object, name: str, bug: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises((AssertionError, KeyError, ProtocolError)):
        fuzz(20_000, random.Random(7), lambda sent: None)


#: In the worker nobody compares a task with its program, and an output that the task does not have
#: is noted as one: what fuzz once found.
UNCHECKED = """
import sys
sys.path.insert(0, {root!r})
from mpgrad.workers import task
from mpgrad.workers.task import Publication

def emit(self, output, array, right=Publication.emit):
    if not 0 <= output < len(self._blocks):
        self._unreported.append(output)
    right(self, output, array)

Publication.emit, task._require_fit = emit, lambda *told: None
"""


@pytest.mark.slow
def test_fuzz_finds_a_worker_that_does_not_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(Path(__file__).parents[2])
    (tmp_path / "sitecustomize.py").write_text(UNCHECKED.format(root=root))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{root}")
    with pytest.raises(AssertionError, match="fuzzed worker exited with status 1: IndexError"):
        fuzz_worker(10_000, 7)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["deep", "--nodes", "3000", "--levels", "40"],
        ["wide", "--branches", "1500", "--leaves", "300"],
        pytest.param(["oom", "--rounds", "1"], marks=pytest.mark.long),
    ],
    ids=lambda arguments: arguments[0],
)
def test_extremes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict.startswith(f"{arguments[0]}: PASSED")
    assert verdict.endswith("nothing left")


@pytest.mark.slow
def test_deep_notices_a_wrong_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    real = mg.Tensor.__neg__
    with mg.Engine("local"):
        assert deep.chain(20)
        monkeypatch.setattr(mg.Tensor, "__neg__", lambda tensor: real(tensor) * 1.5)
        assert not deep.chain(20)


def test_each_run_replaces_its_own_row(tmp_path: Path) -> None:
    page, order = tmp_path / "page.md", ["chaos", "soak"]
    write_row(page, "soak", Verdict(False, "a | b"), "scripts/stress soak", order)
    write_row(page, "chaos", Verdict(True, "all well"), "scripts/stress chaos", order)
    page.write_text(page.read_text() + "\nA remark.\n")
    write_row(page, "soak", Verdict(True, "flat"), "scripts/stress soak", order)
    assert page.read_text().endswith("|\n\nA remark.\n")
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")][1:]
    assert [row.split(" | ")[:3] for row in rows] == [
        ["| chaos", "PASSED", "all well"],
        ["| soak", "PASSED", "flat"],
    ]


def test_what_is_left_is_named(tmp_path: object) -> None:
    before = Leftovers.now()
    with open(f"{tmp_path}/file", "w"):
        assert left_since(before, 0.0) == "1 descriptors"
    assert left_since(before, 0.0) == ""


@pytest.mark.slow
def test_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulation", "--seeds", "250", "--first", "3", "--processes", "2"]) == 0
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict.startswith("simulation: PASSED: 250 worlds, seeds 3 to 252, 0 violations")


def test_a_failed_world_says_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Here(Executor):
        """Worlds run in this process, where a bug is planted."""

        def submit(self, work: Any, *arguments: Any) -> Any:
            future: Future[Any] = Future()
            future.set_result(work(*arguments))
            return future

    monkeypatch.setattr(simulation, "ProcessPoolExecutor", lambda *_: Here())
    monkeypatch.setattr(TaskDispatch, "_release_flight", lambda *_: None)
    assert main(["simulation", "--seeds", "30", "--first", "0"]) == 1
    *_, again, verdict = capsys.readouterr().out.splitlines()
    assert verdict.startswith("simulation: FAILED: 0 worlds")
    assert "InvariantViolated" in verdict
    command = again.removeprefix("again: python -m simulation ").split()
    assert testing.main(command) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["chaos", "--kills", "0"],
        ["chaos", "--minutes", "-1"],
        ["soak", "--backwards", "x"],
        ["tempest"],
        [],
    ],
)
def test_bad_options(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: scripts/stress" in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.slow
def test_operators_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operators", "--calls", "120", "--seed", "8"]) == 0
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict.startswith("operators: PASSED: 120 calls, ")
    assert "; 0 crashes; 0 bare messages of NumPy's; " in verdict
    assert " repeated in workers, 0 with other bits" in verdict


@pytest.mark.parametrize("wrong", ["crash", "bare", "other bits", "differs"])
def test_operators_notices(
    wrong: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def child(seed: int, first: int, number: int, *, beside_torch: bool) -> tuple[int, str]:
        asked.append((first, number))
        if wrong == "crash" and first == 0:
            return -11, "0\n1\n2\n"
        tally = {"returned": number, wrong: 1} if wrong != "crash" else {"returned": number}
        return 0, f"{first}\n" + json.dumps({"tally": tally, "notes": {wrong: ["f(1)"]}})

    monkeypatch.setattr(operators, "_child", child)
    assert main(["operators", "--calls", "9", "--seed", "8"]) == 1
    if wrong == "crash":
        assert asked == [(0, 9), (3, 6)]
        assert "1 crashes: call 2 (exit status -11)" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.slow
def test_functions_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["functions", "--programs", "25", "--seed", "7"]) == 0
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict.startswith("functions: PASSED: 25 programs, ")
    assert " 0 Functions run by workers" not in verdict
    assert "; 0 silent differences; " in verdict


@pytest.mark.process
@pytest.mark.long
def test_many_functions() -> None:
    assert main(["functions", "--programs", "1000", "--seed", "8", "--check", "sample"]) == 0


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (["aa", "1"], ""),
        (["ab", "1"], "another gradient"),
        (["aa", "2"], "another state"),
        (["error", "ValueError", "no"], ""),
        (None, "no result of workers"),
    ],
)
def test_functions_notices(
    there: list[str] | None,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def results(mode: str, *_: object) -> dict[int, Any]:
        steps = ["aa", "1"] if mode == "local" else there
        return {} if steps is None else {0: {"kinds": [], "result": [steps], "sent": 1}}

    monkeypatch.setattr(functions, "_results", results)
    assert main(["functions", "--programs", "1", "--seed", "8"]) == (1 if words else 0)
    assert words in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.slow
def test_hostile_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hostile", "--cases", "raises a frozen"]) == 0
    assert "hostile: PASSED: 1 cases, 0 failed" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.long
def test_all_that_is_hostile() -> None:
    assert main(["hostile"]) == 0


@pytest.mark.parametrize(
    ("output", "case", "words"),
    [
        ("gradient\n" * 3, hostile.Case(), ""),
        ("gradient\nwrong [1.0]\ngradient\n", hostile.Case(), "step 1: wrong"),
        ("gradient\nerror ValueError no\ngradient\n", hostile.Case(), "step 1: error"),
        ("error ValueError no\n" * 3, hostile.Case(error="LookupError"), "does not say why"),
        ("gradient\n" * 3, hostile.Case(error="LookupError"), "no error"),
        ("error A\n" * 3, hostile.Case(error="A", last=True), "the last step"),
        ("gradient\n", hostile.Case(), "1 steps"),
        ("gradient\n" * 3, hostile.Case(status=-9), "exit status 0"),
    ],
)
def test_hostile_notices(output: str, case: hostile.Case, words: str) -> None:
    found = hostile._judge(case, output.encode(), 0)
    assert (words in found) if words else not found
