"""What user code prints, logs or warns on a worker reaches the client, with the worker's name."""

from __future__ import annotations

import logging
import os
import sys
import threading
import types
import warnings
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.wire.output_record import WARNING, decode_shown
from mpgrad.workers.captured_output import OutputForwarder

pytestmark = pytest.mark.process


class Speaks(mg.Function):
    """Says ``text`` in one of several ways."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, how: str, text: str) -> Any:
        ctx.how, ctx.text = how, text
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        if ctx.how == "print":
            print(ctx.text)
        elif ctx.how == "no newline":
            print(ctx.text, end="")
        elif ctx.how == "stderr":
            sys.stderr.write(ctx.text)
        elif ctx.how == "log":
            logging.getLogger("speaks").warning("%s", ctx.text)
        elif ctx.how == "log exception":
            try:
                {}["missing"]
            except KeyError:
                logging.getLogger("speaks").exception("%s", ctx.text)
        elif ctx.how == "warn":
            warnings.warn(ctx.text, DeprecationWarning, stacklevel=1)
        elif ctx.how == "breakpoint":
            breakpoint()
        return grad * 2, None, None


def speak(how: str, text: str) -> None:
    x = mg.tensor([1.0], requires_grad=True)
    Speaks.apply(x, how, text).sum().backward()
    assert x.grad.tolist() == [2.0]


Captured = pytest.CaptureFixture[str]


def test_print(engine: mg.Engine, capsys: Captured) -> None:
    speak("print", "hello")
    out, err = capsys.readouterr()
    assert out in ("[worker 0] hello\n", "[worker 1] hello\n")
    assert err == ""


def test_every_line_has_its_prefix(engine: mg.Engine, capsys: Captured) -> None:
    speak("print", "one\ntwo\n\nfour")
    lines = capsys.readouterr().out.splitlines()
    assert [line[len("[worker 0] ") :] for line in lines] == ["one", "two", "", "four"]


def test_a_line_without_an_end_is_ended(engine: mg.Engine, capsys: Captured) -> None:
    speak("no newline", "first")
    speak("no newline", "second")
    lines = capsys.readouterr().out.splitlines()
    assert [line[len("[worker 0] ") :] for line in lines] == ["first", "second"]


def test_a_progress_bar_comes_out_whole(engine: mg.Engine, capsys: Captured) -> None:
    """As tqdm writes it: each state begins with a carriage return, and does not end its line."""
    speak("stderr", "\r 0%\r 50%\r100%\n")
    states = capsys.readouterr().err.split("\r")
    prefix = states[0]
    assert prefix in ("[worker 0] ", "[worker 1] ")
    assert states[1:] == [f"{prefix} 0%", f"{prefix} 50%", f"{prefix}100%\n"]


def test_stderr(engine: mg.Engine, capsys: Captured) -> None:
    speak("stderr", "complaint\n")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("] complaint\n")


def test_more_than_a_message_should_hold(engine: mg.Engine, capsys: Captured) -> None:
    speak("print", "x" * 3_000_000)
    assert len(capsys.readouterr().out) > 3_000_000


def test_logging(engine: mg.Engine, caplog: pytest.LogCaptureFixture) -> None:
    speak("log", "50 % done")
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("speaks", "WARNING")
    assert record.getMessage().endswith("] 50 % done")
    assert record.funcName == "backward"


def test_a_logged_exception(engine: mg.Engine, caplog: pytest.LogCaptureFixture) -> None:
    speak("log exception", "oh no")
    (record,) = caplog.records
    assert "oh no\nTraceback" in record.getMessage()
    assert "KeyError: 'missing'" in record.getMessage()


def test_a_logger_that_is_off_stays_silent(
    engine: mg.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "speaks"):
        speak("log", "not wanted")
    assert caplog.records == []


def test_warnings(engine: mg.Engine) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        speak("warn", "old way")
    (warned,) = caught
    assert (warned.category, str(warned.message)) == (DeprecationWarning, "old way")
    assert warned.filename == __file__


WARNS = """
class Warns(mg.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, grad):
        warnings.warn("of a cell", stacklevel=1)
        return grad * 2.0
"""


def test_warnings_of_code_without_a_file(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a notebook's cell, which no module in ``sys.modules`` has as its file."""
    cell = types.ModuleType("cell")
    monkeypatch.setitem(sys.modules, "cell", cell)
    vars(cell).update(mg=mg, warnings=warnings)
    exec(compile(WARNS, "<cell>", "exec"), vars(cell))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cell.Warns.apply(mg.ones(2, requires_grad=True)).sum().backward()
    (warned,) = caught
    assert (str(warned.message), warned.filename) == ("of a cell", "<cell>")


def test_a_filter_that_makes_warnings_errors(engine: mg.Engine) -> None:
    # This is the filter that pytest was told to use.
    with pytest.raises(DeprecationWarning, match="old way"):
        speak("warn", "old way")


def test_breakpoint_names_local_mode(engine: mg.Engine) -> None:
    with pytest.raises(RuntimeError, match="local"):
        speak("breakpoint", "")


SCRIPT = """
import mpgrad as mg

class Prints(mg.Function):
    @staticmethod
    def forward(ctx, x):
        return x.numpy() * 2

    @staticmethod
    def backward(ctx, grad):
        print("in backward")
        return grad * 2

x = mg.tensor([1.0], requires_grad=True)
Prints.apply(x).sum().backward()
print(x.grad.tolist())
assert sum(mg.current_engine().statistics().tasks.values()) > 0
assert "client" not in mg.current_engine().statistics().tasks
"""


def test_a_script_without_a_main_guard(
    run_script: Callable[..., CompletedProcess[str]],
) -> None:
    done = run_script(SCRIPT)
    assert done.stderr == ""
    assert done.returncode == 0
    assert done.stdout in ("[worker 0] in backward\n[2.0]\n", "[worker 1] in backward\n[2.0]\n")


NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell = InteractiveShell.instance()
with capture_output() as cell:
    result = shell.run_cell({source!r})
result.raise_error()
assert "in backward" in cell.stdout, cell.stdout
print("shown in the cell")
# The class is edited and the cell run again: the new backward counts.
with capture_output() as cell:
    result = shell.run_cell({source!r}.replace("grad * 2", "grad * 5"))
result.raise_error()
assert "[5.0]" in cell.stdout, cell.stdout
print("edited")
"""


@pytest.mark.slow
def test_a_notebook_cell(run_script: Callable[..., CompletedProcess[str]]) -> None:
    pytest.importorskip("IPython")
    done = run_script(NOTEBOOK.format(source=SCRIPT))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "shown in the cell\nedited\n"


def test_a_warning_that_a_thread_leaves_between_two_tasks_is_of_the_second() -> None:
    sent: list[Any] = []
    forwarder = OutputForwarder(0, lambda kind, data: sent.append((kind, decode_shown(data))))
    forwarder.task = 7
    warned = ("late", UserWarning, "program.py", 1)
    thread = threading.Thread(target=forwarder._show_warning, args=warned)
    thread.start()
    thread.join()
    forwarder.task = 1  # of another graph, which has no task 7
    forwarder.wake()
    assert [(kind, output.task) for kind, output in sent] == [(WARNING, 1)]
    os.close(forwarder.waiting_fd)


def test_a_record_has_what_was_given_beside_its_message(
    engine: mg.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """It was so: a formatter with such a field failed, and records under WARNING were lost where
    a call has got its logger by name."""

    def logs(k: int) -> None:
        logger = logging.getLogger("speaks.more")
        logger.info("info %d", k, extra={"job": k, "what": {"a": 1}})
        logger.debug("not wanted")

    with caplog.at_level(logging.INFO, "speaks.more"):
        mg.parallel_map(logs, [7])
    (record,) = caplog.records
    assert record.getMessage().endswith("] info 7")
    assert (record.levelname, vars(record)["job"], vars(record)["what"]) == ("INFO", 7, "{'a': 1}")
    mg.parallel_map(logs, [8])
    logging.disable(logging.CRITICAL)
    try:
        assert mg.parallel_map(lambda _: logging.getLogger("any").isEnabledFor(50), [1]) == [False]
    finally:
        logging.disable(logging.NOTSET)
    assert mg.parallel_map(lambda _: logging.getLogger("any").isEnabledFor(50), [1]) == [True]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("mode", ["local", "process", "auto"])
def test_a_warning_of_many_calls_comes_once(mode: str) -> None:
    """It was so: in this process it came once for each item of each map."""

    def warns(k: int) -> None:
        warnings.warn("of many", RuntimeWarning, stacklevel=1)

    with mg.Engine(mode, cpu_workers=1), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            mg.parallel_map(warns, range(3))
    assert [str(one.message) for one in caught] == ["of many"]
