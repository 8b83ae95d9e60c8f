"""What a wheel and a source distribution hold: the product alone, and the whole project."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from source_tree import ROOT

import mpgrad

pytestmark = pytest.mark.slow

#: Runs a backward in a worker, and says where mpgrad lies.
BACKWARD = """
import sys
import mpgrad as mg

with mg.Engine("process", cpu_workers=1) as engine:
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    print(mg.__file__, x.grad.tolist(), len(engine.worker_pids()))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel and the source distribution lie."""
    pytest.importorskip("hatchling")
    directory = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


def tracked(*paths: str) -> set[str]:
    """The files under version control."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip("this is no checkout")
    return {name for name in done.stdout.splitlines() if (ROOT / name).exists()}


def test_the_wheel_holds_the_package_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == tracked("mpgrad")
    of_tests = ("test_", "fake", "doomed", "kill_points", "demo")
    assert [name for name in names if Path(name).name.startswith(of_tests)] == []


def test_the_wheel_asks_for_five_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    required = [
        line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert [line.split()[1].split(">")[0] for line in required] == [
        "cloudpickle",
        "msgspec",
        "numpy",
        "pyzmq",
        "threadpoolctl",
    ]


@pytest.mark.process
def test_the_wheel_runs_a_backward_in_a_worker(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    inherited = os.environ.get("PYTHONPATH", "")  # NumPy and the others may lie there
    path = os.pathsep.join(
        entry for entry in inherited.split(os.pathsep) if entry and Path(entry) != ROOT
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", BACKWARD],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "installed"), path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path}/installed/mpgrad/__init__.py [2.0, 4.0] 1\n"


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_it_installs_in_a_fresh_environment(built: Path, tmp_path: Path, kind: str) -> None:
    """What mpgrad needs is taken from this environment: nothing is downloaded."""
    (package,) = built.glob(kind)
    python = tmp_path / "venv" / "bin" / "python"
    here = os.pathsep.join(entry for entry in sys.path if "site-packages" in entry)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    alone = ("--no-deps", "--no-index", "--no-build-isolation", "--force-reinstall")
    printed = []
    for command in (
        [python, "-m", "pip", "install", *alone, package],
        [python, "-P", "-c", BACKWARD],
        [tmp_path / "venv" / "bin" / "mpgrad", "--version"],
    ):
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": here},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[1].startswith(f"{tmp_path}/venv/lib/")
    assert printed[2] == f"mpgrad {mpgrad.__version__}\n"


def test_the_source_distribution_is_whole(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    prefix = f"mpgrad-{mpgrad.__version__}/"
    assert path.name == f"{prefix[:-1]}.tar.gz"
    ours = {name for name in tracked() if not name.startswith(".")}
    assert ours - names == set()
