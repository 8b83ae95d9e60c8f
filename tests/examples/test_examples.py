"""Every example, the README's too, runs as it is, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python_path import path_to

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

#: Example -> (its argument, what it must print).
EXPECTED = {
    "simulators.py": ("500", ["friction 0.300, of the last spring 2.500", "worker "]),
    "debugging.py": (
        "20",
        [
            "gradcheck: True",
            "backward of Root: smallest argument 0.0",
            "RuntimeError: Function 'RootBackward' returned nan values",
            "x.grad: None",
            "MulBackward0, RootBackward, SumBackward0",
            "first element: 0.5",
        ],
    ),
    "many_devices.py": ("2", ["step 2  loss", "towers on: cpu"]),
    "or_a_pool.py": ("100", ["loop", "mpgrad, Swing.map", "ProcessPoolExecutor", "gradient -0.0"]),
    "quickstart.py": ("200", ["local", "process", "gradients: [0.9"]),
    "train_digits.py": ("1", ["epoch  1  loss"]),
    "train_resnet18.py": (
        "--steps 1 --width 4 --batch-size 8 --images 64",
        ["epoch 1 step   1/7 loss 2.9"],
    ),
    "mixture_of_experts.py": (
        "40",
        ["one step in workers:", "step 2  loss 0.", "tasks run by: ", "worker 0"],
    ),
    "render_tiles.py": (
        "16",
        ["one step in this process:", "one step in workers:", "loss 0.18", "worker 1"],
    ),
    "train_gan.py": ("20", ["mean radius", "backward passes here: 40, in workers: 0"]),
    "lazy_reader.py": ("100", ["8 files, read by: worker", "gradient 7.9"]),
    "custom_function.py": ("20", ["LogDeterminantBackward", "ran 4 times in this process"]),
    "hooks.py": (
        "8",
        ["entry: 0.01", "'hidden (8, 64)', 'updated (1, 64)'", "without an optimizer"],
    ),
}
#: These are run by ``mpgrad run``.
OF_SEVERAL_RANKS = (
    "data_parallel.py",
    "elastic_digits.py",
    "split_model.py",
    "parameter_server.py",
    "pipeline.py",
)


def test_every_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*EXPECTED, *OF_SEVERAL_RANKS}


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_example(name: str) -> None:
    """With a small size."""
    if name in ("train_digits.py", "train_resnet18.py"):
        pytest.importorskip("sklearn")
    argument, said = EXPECTED[name]
    printed = what_prints(EXAMPLES / name, *argument.split())
    assert [words for words in said if words not in printed] == []


#: Runs the cells of a notebook as Jupyter does; the value of a cell's last line is printed.
NOTEBOOK = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        done = shell.run_cell("".join(cell["source"]))
        done.raise_error()
        if hasattr(done.result, "_repr_html_"):
            print(done.result._repr_html_()[:80])
"""


@pytest.mark.process
@pytest.mark.slow
def test_the_notebook(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    runner = tmp_path / "runner.py"
    runner.write_text(NOTEBOOK)
    done = subprocess.run(
        [sys.executable, str(runner), str(EXAMPLES / "notebook.ipynb")],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": path_to(ROOT), "IPYTHONDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [f"part {k}" for k in range(4) if f"part {k}" not in done.stdout] == []
    assert "ZeroDivisionError in a worker: integer division or modulo by zero" in done.stdout
    assert "<pre>&lt;Engine mode=&#x27;process&#x27; cpu_workers=2 open&gt;" in done.stdout
    assert "nodes in" in done.stdout


@pytest.mark.process
@pytest.mark.slow
def test_ranks_end_with_the_same_parameters() -> None:
    pytest.importorskip("sklearn")
    launcher = ("-m", "mpgrad", "run", "--nproc-per-node", "2")
    printed = what_prints(EXAMPLES / "data_parallel.py", "1", launcher=launcher)
    assert "[rank 0] epoch 1  loss" in printed
    assert len(re.findall(r"\[rank \d\] parameters", printed)) == 2
    assert len(set(re.findall(r"parameters (\w+)", printed))) == 1


@pytest.mark.process
@pytest.mark.slow
def test_the_death_of_a_rank_changes_no_bit() -> None:
    pytest.importorskip("sklearn")
    command = [sys.executable, "-m", "mpgrad", "run", "--nproc-per-node", "2", "--max-restarts"]
    found = set()
    for victim in ([], ["0"], ["1"]):
        done = subprocess.run(
            [*command, "1", str(EXAMPLES / "elastic_digits.py"), "1", *victim],
            capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "PYTHONPATH": path_to(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        restarted = re.findall(r"rank (\d) .* it is started again", done.stderr)
        assert (restarted, done.stderr.count("\n")) == (victim, len(victim))
        assert len(re.findall(r"\[rank \d\] parameters", done.stdout)) == 2
        found |= set(re.findall(r"parameters (\w+)", done.stdout))
    assert len(found) == 1


@pytest.mark.hosts
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "argument", "ranks"),
    [("split_model.py", "1", "2"), ("parameter_server.py", "5", "4"), ("pipeline.py", "1", "3")],
)
def test_several_hosts_end_with_the_bits_of_one(name: str, argument: str, ranks: str) -> None:
    pytest.importorskip("sklearn")
    found = []
    for number in ("1", ranks):
        launcher = ("-m", "mpgrad", "run", "--nproc-per-node", number)
        printed = what_prints(EXAMPLES / name, argument, launcher=launcher, OMP_NUM_THREADS="1")
        found += re.findall(r"parameters (\w+)", printed)
    assert len(found) == 2
    assert found[0] == found[1]


@pytest.mark.process
@pytest.mark.slow
def test_the_readmes_example(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(code)
    (gradient,) = what_prints(script).splitlines()
    assert f'.grad:.2f}}")  # {gradient}\n' in code  # what its comment says


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "towers", "devices"),
    [("none", "cpu", ["CPU"] * 2), ("all", "cuda:0, cuda:1", ["CPU"] * 2 + ["cuda:0", "cuda:1"])],
)
def test_all_devices_under_the_launcher(gpus: str, towers: str, devices: list[str]) -> None:
    """The table of workers is on stderr, and the script has the engine. The GPUs are a fake."""
    done = subprocess.run(
        [sys.executable, "-m", "mpgrad", "run", "--cpu-workers", "2", "--gpus", gpus,
         str(EXAMPLES / "many_devices.py"), "2"],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": path_to(ROOT),
             "MPGRAD_CUDA_DRIVER": "tests.cuda.fake_driver:two_gpus"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, _, *rows = done.stderr.splitlines()
    assert first.startswith(f"mpgrad run: {len(devices)} workers are ready after")
    assert [row.split()[4] for row in rows] == devices
    assert "step 2  loss 0.0602" in done.stdout
    assert f"towers on: {towers}\n" in done.stdout
    assert re.search(r"tasks run by: .*worker \d", done.stdout)


#: Guides whose blocks of code are programs, together from top to bottom.
GUIDES = sorted((ROOT / "docs" / "guides").glob("from_*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_the_code_of_a_guide_runs(
    guide: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)
    if any("scipy" in block for block in blocks):
        pytest.importorskip("scipy")
    assert blocks
    script = tmp_path / "guide.py"
    script.write_text("\n\n".join(blocks))
    monkeypatch.setenv("MPGRAD_ENGINE", "local")
    what_prints(script)


def what_prints(
    script: Path, *arguments: str, launcher: tuple[str, ...] = (), **environment: str
) -> str:
    """The output of a script that ends well and writes nothing on stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *launcher, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path_to(ROOT), **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout
