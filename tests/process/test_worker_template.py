"""Workers are forked from a template, which has loaded what they need."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

import mpgrad as mg
from mpgrad.calls import preloading

pytestmark = pytest.mark.process

DRAWN = 0.0


def loaded(name: str) -> bool:
    return name in sys.modules


def template_of(engine: mg.Engine) -> psutil.Process:
    children = psutil.Process(engine.coordinator_pid).children()
    [template] = [child for child in children if child.pid not in engine.worker_pids()]
    return template


def test_workers_have_loaded_what_functions_name() -> None:
    import colorsys

    with mg.Engine("process", cpu_workers=1):
        assert mg.parallel_map(loaded, ["colorsys"]) == [False]
        assert mg.parallel_map(lambda x: colorsys.rgb_to_hsv(x, x, x)[2], [2.0]) == [2.0]
    assert "colorsys" in preloading.preloaded()
    with mg.Engine("process", cpu_workers=1):
        assert mg.parallel_map(loaded, ["colorsys"]) == [True]


def test_modules_that_may_hold_something_are_not_loaded() -> None:
    """Workers would share generators of random numbers, files and locks that an import makes."""
    with mg.Engine("process", cpu_workers=1):
        assert mg.parallel_map(lambda x: psutil.pid_exists(0) and x, [False]) == [False]
    assert "psutil" not in preloading.preloaded()


def test_a_module_that_a_program_has_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    import colorsys

    with mg.Engine("process", cpu_workers=1):
        assert mg.parallel_map(lambda x: colorsys.rgb_to_hsv(x, x, x)[2], [2.0]) == [2.0]
    monkeypatch.setitem(sys.modules, "colorsys", None)
    assert "colorsys" not in preloading.preloaded()


def test_users_modules_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_the_user.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    import of_the_user  # type: ignore[import-not-found]

    with mg.Engine("process", cpu_workers=1):
        assert mg.parallel_map(lambda x: of_the_user.double(x), [2.0]) == [4.0]
    assert "of_the_user" not in preloading.preloaded()


def test_a_module_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preloading, "LIBRARIES", ["no_such_module_of_mpgrad"])
    with mg.Engine("process", cpu_workers=1) as engine:
        assert mg.parallel_map(abs, [-1]) == [1]
        assert template_of(engine).is_running()


def test_a_module_that_starts_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They survive no fork: workers start without a template."""
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(preloading, "LIBRARIES", ["starts_a_thread"])
    with mg.Engine("process", cpu_workers=2) as engine:
        assert mg.parallel_map(abs, [-1, -2]) == [1, 2]
        children = psutil.Process(engine.coordinator_pid).children()
        assert sorted(child.pid for child in children) == sorted(engine.worker_pids())


def test_a_worker_is_the_coordinators_own_child() -> None:
    with mg.Engine("process", cpu_workers=2) as engine:
        template = template_of(engine)
        assert template.num_threads() == 1
        for pid in engine.worker_pids():
            assert psutil.Process(pid).ppid() == engine.coordinator_pid
            assert psutil.Process(pid).memory_full_info().uss < template.memory_info().rss / 2


def test_a_template_that_is_killed_gets_a_successor() -> None:
    with mg.Engine("process", cpu_workers=1) as engine:
        template = template_of(engine)
        template.kill()
        for _ in range(2):  # the first one is started without it
            [worker] = engine.worker_pids()
            os.kill(worker, signal.SIGKILL)
            assert mg.parallel_map(abs, [-1]) == [1]
        assert template_of(engine) != template


def test_a_stopped_template_holds_nobody_up_for_long() -> None:
    with mg.Engine("process", cpu_workers=1) as engine:
        template = template_of(engine)
        template.suspend()
        [worker] = engine.worker_pids()
        os.kill(worker, signal.SIGKILL)
        assert mg.parallel_map(abs, [-1]) == [1]
        assert template_of(engine) != template


AT_EXIT = """
import atexit, os
atexit.register(lambda: os.write(1, b"end "))
"""


def test_what_runs_at_exit_runs_once_for_each_worker(
    run_script: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nif 'mpgrad.workers' in sys.orig_argv:\n    exec({AT_EXIT!r})"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run_script(
        "import mpgrad as mg\n"
        "with mg.Engine('process', cpu_workers=2): mg.parallel_map(abs, range(8))\n"
    )
    assert (done.stdout, done.stderr) == ("end end ", "")


def leaves_open(path: Path) -> None:
    file = path.open("w")
    sys.kept = file  # type: ignore[attr-defined]
    file.write("some words")


def test_a_file_that_user_code_has_left_open_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with mg.Engine("process", cpu_workers=1):
        mg.parallel_map(leaves_open, [path])
        assert path.read_text() == ""
    assert path.read_text() == "some words"


PROGRAM = """
import sys
import mpgrad as mg

with mg.Engine("process", cpu_workers=2) as engine:
    print(engine.coordinator_pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("victim", ["client", "coordinator"])
def test_nothing_stays(start_script: Callable[..., subprocess.Popen[bytes]], victim: str) -> None:
    client = start_script(PROGRAM)
    assert client.stdout is not None
    coordinator = int(client.stdout.readline())
    family = psutil.Process(coordinator).children()
    assert len(family) == 3
    os.kill(client.pid if victim == "client" else coordinator, signal.SIGKILL)
    assert not psutil.wait_procs(family, 30)[1]


def test_several_threads_of_blas() -> None:
    """They survive no fork either."""
    with mg.Engine("process", cpu_workers=1, blas_threads=2) as engine:
        assert mg.parallel_map(abs, [-1]) == [1]
        children = psutil.Process(engine.coordinator_pid).children()
        assert [child.pid for child in children] == engine.worker_pids()


def note_number() -> None:
    global DRAWN
    DRAWN = np.random.random()


def drawn_at_start(_: int) -> tuple[int, float]:
    return os.getpid(), DRAWN


def test_each_worker_has_numbers_of_its_own() -> None:
    with mg.Engine("process", cpu_workers=3, initializer=note_number):
        found: set[tuple[int, float]] = set()
        while len({pid for pid, _ in found}) < 2:
            found.update(mg.parallel_map(drawn_at_start, range(12)))
    assert len({number for _, number in found}) == len(found)


SPECIAL = """
import sys
import numpy as np
import mpgrad as mg
import scipy.special

def loaded(name):
    return name in sys.modules

with mg.Engine("process", cpu_workers=1):
    print(mg.parallel_map(loaded, ["scipy.special"]))
    scipy.special.seterr(singular="raise")
    print(mg.parallel_map(loaded, ["scipy.special"]))
"""


def test_no_worker_loads_scipy_for_its_settings_as_they_are(
    run_script: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    pytest.importorskip("scipy")
    done = run_script(SPECIAL)
    assert done.stdout == "[False]\n[True]\n", done.stderr
