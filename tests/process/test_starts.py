"""Starts of engines where the child interpreter could be another than the parent's, or none."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

import mpgrad as mg
from mpgrad.engine import coordinator_watchdog
from mpgrad.engine.session_pool import SessionPool
from tests.leftovers import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

#: Where NumPy and the others lie, and this mpgrad.
DEPENDENCIES = list(
    dict.fromkeys(str(Path(str(module.__file__)).parents[1]) for module in (np, zmq, msgspec))
)
PACKAGE = Path(mg.__file__).parent

BACKWARD = """
import mpgrad as mg

class Doubles(mg.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx, x):
        return x.detach() * 2.0

    @staticmethod
    def backward(ctx, g):
        return g * 2.0

def gradient():
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    mg.stack([Doubles.apply(x * k).sum() for k in range(1, 5)]).sum().backward()
    return x.grad.tolist()

if __name__ == "__main__":
    with mg.Engine("process", cpu_workers=2):
        print(gradient())
"""
RIGHT = "[20.0, 20.0]\n"


def run(
    tmp_path: Path, source: str, *flags: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program that knows no packages but those that it puts into ``sys.path``."""
    path = tmp_path / "program.py"
    path.write_text(source)
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MPGRAD"))}
    return subprocess.run(
        [os.path.realpath(sys.executable), "-S", *flags, str(path)],
        env={**bare, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def knowing(*folders: str | Path) -> str:
    """The first line of a program that has these folders behind the standard library."""
    return f"import sys; sys.path += {list(map(str, folders))!r}\n"


HERE = knowing(PACKAGE.parent, *DEPENDENCIES)


def outcome(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return done.returncode, done.stdout, done.stderr


# ---------------------------------------------------------------------- another interpreter


def test_packages_that_only_the_program_knows(tmp_path: Path) -> None:
    assert outcome(run(tmp_path, HERE + BACKWARD)) == (0, RIGHT, "")


@pytest.mark.parametrize(
    "flags", ["-I", "-E", "-s -O", "-X dev", "-W error", "-bb", "-X frozen_modules=off"]
)
def test_flags(tmp_path: Path, flags: str) -> None:
    """What ``-E`` and ``-I`` hide would end each Python that sees it."""
    home = {"PYTHONHOME": "/nowhere"} if flags in ("-E", "-I") else {}
    assert outcome(run(tmp_path, HERE + BACKWARD, *flags.split(), **home)) == (0, RIGHT, "")


def test_a_home_that_is_set_at_run_time_is_for_other_programs(tmp_path: Path) -> None:
    source = HERE + "import os; os.environ['PYTHONHOME'] = '/nowhere'\n" + BACKWARD
    assert outcome(run(tmp_path, source)) == (0, RIGHT, "")


@pytest.mark.parametrize("shadow", ["typing", "enum", "dataclasses", "logging", "struct"])
def test_a_backport_beside_mpgrad(tmp_path: Path, shadow: str) -> None:
    """It lies behind the standard library, for the client and for its children."""
    site = tmp_path / "site"
    site.mkdir()
    (site / f"{shadow}.py").write_text("# for Python 3.4: nothing of today is in it\n")
    (site / "mpgrad").symlink_to(PACKAGE)
    source = knowing(site, *DEPENDENCIES) + BACKWARD
    assert outcome(run(tmp_path, source)) == (0, RIGHT, "")


IS_THIS_ONE = """
class Tells(Doubles):
    @staticmethod
    def backward(ctx, g):
        import os, sys
        assert sys.modules["mpgrad"].__file__.startswith({folder!r})
        assert not [name for name in os.environ if "MPGRAD" in name]
        return g * 2.0

if __name__ == "__main__":
    with mg.Engine("process", cpu_workers=1):
        x = mg.ones(2, requires_grad=True)
        Tells.apply(x).sum().backward()
        print(x.grad.tolist())
"""


@pytest.mark.parametrize("name", ["a:b", "two words", "caf\u00e9"])
def test_the_folder_of_mpgrad(tmp_path: Path, name: str) -> None:
    """Nor is another mpgrad taken, which comes first in ``sys.path`` since."""
    folder, other = tmp_path / name, tmp_path / "other"
    folder.mkdir()
    (folder / "mpgrad").symlink_to(PACKAGE)
    (other / "mpgrad").mkdir(parents=True)
    (other / "mpgrad" / "__init__.py").write_text("raise ImportError('another mpgrad')\n")
    first = f"sys.path.insert(0, {str(other)!r})\n"
    source = knowing(folder, *DEPENDENCIES) + "import mpgrad\n" + first + BACKWARD
    source += IS_THIS_ONE.format(folder=str(folder))
    assert outcome(run(tmp_path, source)) == (0, RIGHT + "[2.0, 2.0]\n", "")


def test_a_long_path(tmp_path: Path) -> None:
    """A pipe holds less."""
    source = HERE + f"sys.path += [{str(tmp_path)!r} + f'/{{n:0150}}' for n in range(1000)]\n"
    assert outcome(run(tmp_path, source + BACKWARD)) == (0, RIGHT, "")


def test_ranks_find_what_their_launcher_finds(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(BACKWARD)
    source = HERE + (
        "from mpgrad.launch import cli\n"
        f"sys.exit(cli.main(['run', '--nproc-per-node', '2', {str(tmp_path / 'rank.py')!r}]))\n"
    )
    code, out, err = outcome(run(tmp_path, source, "-E", PYTHONHOME="/nowhere"))
    assert (code, err) == (0, "")
    assert sorted(out.splitlines(keepends=True)) == [f"[rank {n}] {RIGHT}" for n in range(2)]


STARTS_ANOTHER = """
import subprocess, sys

class Starts(Doubles):
    @staticmethod
    def backward(ctx, g):
        program = "import mpgrad as mg; print(mg.Engine('process', cpu_workers=1).__enter__())"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        print(done.stdout.strip(), done.stderr)
        return g

with mg.Engine("process", cpu_workers=1):
    Starts.apply(mg.ones(2, requires_grad=True)).sum().backward()
"""


def test_a_function_may_start_another_program(run_script: Callable[..., Any]) -> None:
    done = run_script(BACKWARD.partition("if __name__")[0] + STARTS_ANOTHER)
    assert done.stdout == "[worker 0] <Engine mode='process' cpu_workers=1 open> \n"


# ---------------------------------------------------------------------- no interpreter

APPLICATION = """\
#!/bin/sh
echo run >> {runs}
exec {python} {program} "$@"
"""

IS_AN_APPLICATION = """
import sys, time
sys.executable = {application!r}

class Heavy(Doubles):
    @staticmethod
    def backward(ctx, g):
        return g * (2.0 + 0 * sum(range(200_000)))

def heavy():
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    mg.stack([Heavy.apply(x * k).sum() for k in range(1, 9)]).sum().backward()
    return x.grad.tolist()

def unavailable(engine):
    return engine._made is not None and engine._made.preparation.unavailable is not None

with mg.Engine({mode!r}, cpu_workers=2) as engine:
    if {mode!r} == "auto":
        while not unavailable(engine):
            heavy()
        for _ in range(20):
            heavy()
    print(heavy())
"""


def run_application(
    tmp_path: Path, run_script: Callable[..., Any], mode: str
) -> tuple[subprocess.CompletedProcess[str], int]:
    """A program whose ``sys.executable`` is the program itself; how often it was started."""
    application, runs, program = (tmp_path / n for n in ("application", "runs", "script.py"))
    application.write_text(APPLICATION.format(runs=runs, python=sys.executable, program=program))
    application.chmod(0o755)
    source = BACKWARD.partition("if __name__")[0]
    source += IS_AN_APPLICATION.format(application=str(application), mode=mode)
    done = run_script(source)
    return done, len(runs.read_text().splitlines())


def test_an_application_that_would_start_itself(
    tmp_path: Path, run_script: Callable[..., Any]
) -> None:
    done, runs = run_application(tmp_path, run_script, "process")
    assert (done.returncode, done.stdout, runs) == (1, "", 1)
    assert "while a backward was running" not in done.stderr
    for words in ("sys.executable", "multiprocessing.freeze_support", "MPGRAD_PYTHON", "EngineCl"):
        assert words in done.stderr


def test_auto_says_so_in_one_line(tmp_path: Path, run_script: Callable[..., Any]) -> None:
    done, runs = run_application(tmp_path, run_script, "auto")
    assert (done.returncode, done.stdout, runs) == (0, "[72.0, 72.0]\n", 1)
    [line] = done.stderr.splitlines()
    for words in ("sys.executable", "multiprocessing.freeze_support", "MPGRAD_PYTHON"):
        assert words in line


@pytest.mark.parametrize("executable", [None, "", "/nowhere/python", "/bin/true", "/bin/false"])
def test_executables_that_are_none(monkeypatch: pytest.MonkeyPatch, executable: str | None) -> None:
    python = sys.executable
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises((mg.errors.EngineClosed, RuntimeError, OSError)) as caught:
        mg.Engine("process", cpu_workers=1).__enter__()
    assert "while a backward was running" not in str(caught.value)
    for words in ("sys.executable", "multiprocessing.freeze_support", "MPGRAD_PYTHON"):
        assert words in str(caught.value)
    monkeypatch.setenv("MPGRAD_PYTHON", python)
    x = mg.ones(2, requires_grad=True)
    with mg.Engine("process", cpu_workers=1):
        (x * 2).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "waits", ["exec sleep 1000", "exec sleep 1000 >/dev/null 2>&1", "while :; do :; done"]
)
def test_a_program_that_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    host = tmp_path / "host"
    host.write_text(f"#!/bin/sh\n{waits}\n")
    host.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(host))
    monkeypatch.setenv("MPGRAD_START_TIMEOUT", "1")
    monkeypatch.setattr(coordinator_watchdog, "RUN_LIMIT_S", 1.0)
    with pytest.raises(mg.errors.EngineClosed) as caught:
        mg.Engine("process", cpu_workers=1, recover="all").__enter__()
    assert " was killed" in str(caught.value)
    assert f"{str(host)!r} (sys.executable)" in str(caught.value)


# ---------------------------------------------------------------------- no start

#: In ``sitecustomize``, which each Python runs when it starts.
IN_WORKERS = """
import os, signal, sys
if "mpgrad.workers" in sys.orig_argv:
    {what}
"""


@pytest.fixture
def workers_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let each worker do something before it has become one."""

    def do(what: str) -> None:
        (tmp_path / "sitecustomize.py").write_text(IN_WORKERS.format(what=what))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return do


def test_a_worker_that_is_stopped_while_it_starts(
    workers_do: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    marks = tmp_path / "stopped"
    marks.mkdir()
    # Their template, too: so workers start without it.
    do = f"open(os.path.join({str(marks)!r}, str(os.getpid())), 'x'), os.kill(os.getpid(), 19)"
    workers_do(f"len(os.listdir({str(marks)!r})) > 1 or ({do})")
    monkeypatch.setenv("MPGRAD_START_TIMEOUT", "5")
    x = mg.ones(2, requires_grad=True)
    with mg.Engine("process", cpu_workers=1) as engine:
        (x * 2).sum().backward()
        assert engine.statistics().restarts == 1
    assert x.grad.tolist() == [2.0, 2.0]
    assert "mpgrad: worker w0.1 (pid " in (said := capfd.readouterr().err)
    assert "has been stopped (SIGSTOP) for 3 s, and the start of the engine waits for it" in said


def test_a_worker_that_never_answers(
    workers_do: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers_do("signal.pause()")
    monkeypatch.setenv("MPGRAD_START_TIMEOUT", "2")
    with pytest.raises(mg.errors.EngineClosed, match=r"worker w\d\.1 \(pid \d+\) did nothing for"):
        mg.Engine("process", cpu_workers=2).__enter__()


def test_a_worker_without_numpy(
    workers_do: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    """Its traceback is a part of the error: nothing else prints it."""
    workers_do("sys.modules['numpy'] = None")
    with pytest.raises(mg.errors.EngineClosed, match=r"No module named 'numpy'|numpy") as caught:
        mg.Engine("process", cpu_workers=1).__enter__()
    assert "Traceback" in "".join(caught.value.__notes__)
    assert capfd.readouterr().err == ""


def test_an_engine_that_is_closed_while_it_starts_ends_at_once(
    tmp_path: Path, run_script: Callable[..., Any]
) -> None:
    host = tmp_path / "host"
    host.write_text("#!/bin/sh\nexec sleep 1000\n")
    host.chmod(0o755)
    source = (
        BACKWARD.partition("if __name__")[0]
        + f"""
import sys
import threading
from tests.process.test_auto import gradient as heavy
sys.executable = {str(host)!r}
with mg.Engine("auto", cpu_workers=2) as engine:
    while engine.coordinator_pid is None:
        heavy(12)
    print(heavy(12))
"""
    )
    done = run_script(source)
    assert outcome(done) == (0, "24.0\n", "")


def test_a_start_that_has_failed_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward that was running meanwhile had started the program a second time."""
    tried = []

    def start(self: Any, *args: Any, **options: Any) -> None:
        tried.append(1)
        raise mg.errors.EngineClosed("no")

    monkeypatch.setattr(SessionPool, "start", start)
    with mg.Engine("auto", cpu_workers=2) as engine:
        execution = engine.execution_for_calls()
        execution._start_in_background()
        assert wait_until(lambda: execution.preparation.unavailable is not None)
        assert wait_until(
            lambda: not any("mpgrad-starter" in one.name for one in threading.enumerate())
        )
        execution._start_in_background()
        assert not any("mpgrad-starter" in one.name for one in threading.enumerate())
    assert tried == [1]


# ---------------------------------------------------------------------- closed too early


@pytest.mark.parametrize("forks", [1, 20], ids=["one that runs", "and some that wait"])
def test_forks_that_run_at_the_end_of_the_block_say_so(forks: int, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)

    def waits(number: int) -> None:
        if number == 0:
            begun.write_text("yes")
        threading.Event().wait()

    with mg.Engine("process", cpu_workers=1):
        futures = [mg.fork(waits, number) for number in range(forks)]
        begun.read_text()
    for future in futures:
        with pytest.raises(mg.errors.EngineClosed) as caught:
            future.result(60)
        said = str(caught.value)
        assert "closed before the call of" in said
        assert "waits had ended. Wait for all forks" in said
        assert "thread" not in said


def waits_for_ever() -> None:
    threading.Event().wait()


def test_a_fork_whose_engine_has_hardly_begun_says_the_same() -> None:
    with mg.Engine("process", cpu_workers=1):
        future = mg.fork(waits_for_ever)
    with pytest.raises(mg.errors.EngineClosed, match="the engine was closed before the call of"):
        future.result(60)


@pytest.mark.parametrize("ends", ["close", "death"])
def test_a_map_that_loses_its_processes_is_no_backward(ends: str, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    said = []

    def waits(number: int) -> None:
        begun.write_text("yes")
        threading.Event().wait()

    def run() -> None:
        try:
            mg.parallel_map(waits, [0])
        except mg.errors.MpgradError as error:
            said.append(str(error))

    with mg.Engine("process", cpu_workers=1) as engine:
        thread = threading.Thread(target=run)
        thread.start()
        begun.read_text()
        if ends == "close":
            engine.close()
        else:
            os.kill(engine.coordinator_pid, signal.SIGKILL)
        thread.join()
    assert "while calls were running in its workers" in said[0]
    assert "backward" not in said[0]


def test_a_fork_that_nobody_has_asked_for_names_the_line_that_began_it() -> None:
    with mg.Engine("process", cpu_workers=1):
        mg.fork(waits_for_ever)
    with pytest.warns(RuntimeWarning, match="nobody has asked for its result") as said:
        gc.collect()
    assert said[0].filename == __file__
