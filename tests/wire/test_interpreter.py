"""How a child is started: the parent's flags, variables and path; who is no interpreter."""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mpgrad as mg
from mpgrad.base import interpreter
from mpgrad.wire.setup import spawn

SHOWS_COMMAND = """
from mpgrad.base import interpreter
command = interpreter.command("python", "mpgrad.workers", 7)
print(" ".join(command[1:command.index("-c")]))
print(*sorted(k for k in interpreter.environment() if k.startswith("PYTHON")))
"""


def shown(
    flags: list[str], variables: dict[str, str], before: str = ""
) -> tuple[list[str], list[str]]:
    """The options, and Python's variables, that children of such an interpreter get."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    home = str(Path(mg.__file__).parents[1])
    source = f"import sys; sys.path.insert(0, {home!r})\n{before}\n{SHOWS_COMMAND}"
    done = subprocess.run(
        [sys.executable, *flags, "-c", source],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    options, names = done.stdout.splitlines()
    return options.split(), names.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "given"),
    [
        ("", "-P -X utf8=0"),
        ("-O", "-P -X utf8=0 -O"),
        ("-OO -b -B", "-P -X utf8=0 -B -OO"),
        ("-s", "-P -X utf8=0 -s"),
        ("-I", "-P -X utf8=0 -s"),
        ("-X utf8 -X int_max_str_digits=0", "-P -X utf8=1 -X int_max_str_digits=0"),
        # They would only print something, or change what the client decides.
        ("-v -X importtime -W error", "-P -X utf8=0"),
    ],
)
def test_a_child_has_the_flags_of_its_parent(flags: str, given: str) -> None:
    options, _ = shown(flags.split(), {"LC_ALL": "C.UTF-8"})
    assert options == given.split()


VARIABLES = {"PYTHONUSERBASE": "/there", "PYTHONPATH": "/here"}


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["-E", "-I"])
def test_variables_that_the_parent_ignores(flag: str) -> None:
    assert shown([flag], VARIABLES)[1] == []


@pytest.mark.slow
def test_variables_that_were_set_later_are_none_of_the_interpreter_s() -> None:
    later = "import os; os.environ.update(PYTHONHOME='/nowhere', PYTHONPATH='/now')"
    assert shown([], VARIABLES, later)[1] == ["PYTHONPATH", "PYTHONUSERBASE"]


def test_a_program_that_shows_a_title_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has overwritten what /proc would say."""
    monkeypatch.setattr("builtins.open", lambda *_: (_ for _ in ()).throw(OSError()))
    monkeypatch.setenv("PYTHONUSERBASE", "/there")
    assert interpreter.environment()["PYTHONUSERBASE"] == "/there"


@pytest.mark.parametrize("executable", [None, ""])
def test_no_executable(monkeypatch: pytest.MonkeyPatch, executable: str | None) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(RuntimeError, match=r"sys\.executable is (None|'')") as caught:
        interpreter.python()
    for words in ("multiprocessing.freeze_support", "MPGRAD_PYTHON", 'Engine(mode="local")'):
        assert words in str(caught.value)
    monkeypatch.setenv("MPGRAD_PYTHON", "/usr/bin/python3")
    assert interpreter.python() == "/usr/bin/python3"


def test_a_frozen_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(RuntimeError, match=r"frozen: sys\.executable") as caught:
        interpreter.python()
    for words in ("multiprocessing.freeze_support", "MPGRAD_PYTHON", 'Engine(mode="local")'):
        assert words in str(caught.value)
    # Its files are nowhere that another interpreter finds them.
    _, path, file, *_ = marshal.loads(interpreter.origin())
    assert (path, file) == ([], None)


def test_a_process_that_was_meant_to_be_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(interpreter.MARK, "17")
    with pytest.raises(RuntimeError, match="process 17 has started this one"):
        mg.Engine()


def last_words(origin: bytes, capfd: pytest.CaptureFixture[str]) -> str:
    """What a coordinator says that is started like that, before it ends."""
    child, writer = spawn(sys.executable, "mpgrad.coordinator", (), {})
    with os.fdopen(writer, "wb") as stream:
        stream.write(interpreter.start_of(origin, b""))
    assert child.wait() == 1
    return capfd.readouterr().err


@pytest.mark.slow
def test_another_python(capfd: pytest.CaptureFixture[str]) -> None:
    _, *rest = marshal.loads(interpreter.origin())
    said = last_words(marshal.dumps(("cpython-27", *rest)), capfd)
    assert said == f"it is Python {sys.version.split()[0]}, and the program runs under cpython-27\n"


@pytest.mark.slow
def test_another_version_of_mpgrad(capfd: pytest.CaptureFixture[str]) -> None:
    tag, path, file, _, variables = marshal.loads(interpreter.origin())
    said = last_words(marshal.dumps((tag, path, file, "0.0.1", variables)), capfd)
    assert f"it would run mpgrad {mg.__version__} ({mg.__file__})" in said
    assert f"the program runs mpgrad 0.0.1 ({file})" in said


@pytest.mark.slow
def test_the_mpgrad_of_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Something that runs when Python starts has imported it already."""
    home = Path(mg.__file__).parents[1]
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys; sys.path.insert(0, {str(home)!r}); import mpgrad"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "__init__.py").write_text("")
    tag, path, _, *rest = marshal.loads(interpreter.origin())
    other = str(tmp_path / "__init__.py")
    said = last_words(marshal.dumps((tag, path, other, *rest)), capfd)
    assert (
        said == f"it would run the mpgrad of {mg.__file__}, and the program runs that of {other}\n"
    )
