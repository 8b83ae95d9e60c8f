"""Texts of the system that are not UTF-8 reach workers, and come back from them, as they are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.process.conftest import script_command, script_environment

pytestmark = [pytest.mark.process, pytest.mark.slow]

#: "cafe" with an accent in Latin-1, as Python shows such a name.
NAME = os.fsdecode(b"caf\xe9")
PROGRAM = """
import logging, os, sys, warnings
import numpy as np
import mpgrad as mg

NAME = os.fsdecode(b"caf\\xe9")

class Speaks(mg.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx, x):
        ctx.text = NAME
        return x * 2.0

    @staticmethod
    def backward(ctx, grad):
        {backward}
        return grad * 2.0

def gradient():
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    Speaks.apply(x).sum().backward()
    return x.grad.tolist()

if __name__ == "__main__":
    with mg.Engine("process", cpu_workers=1):
        {main}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / NAME
    place.mkdir()
    return place


def run(
    place: Path, backward: str, main: str = "print(gradient())"
) -> subprocess.CompletedProcess[bytes]:
    """A program that lies there, runs there, and lets its Function do something."""
    return subprocess.run(
        script_command(place, PROGRAM.format(backward=backward, main=main)),
        cwd=place,
        env={**script_environment(), "PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
        check=False,
        timeout=120,
    )


def test_what_a_worker_says(place: Path) -> None:
    backward = """
        print(NAME)
        print(NAME, file=sys.stderr)
        sys.stderr.buffer.write(b"caf\\xe9 as bytes\\n")
        logging.getLogger(NAME).warning(NAME + " logged")
        warnings.warn_explicit(NAME, UserWarning, NAME + ".py", 3)"""
    ended = run(place, backward)
    # The client's stdout cannot show it: it is escaped, as on stderr.
    assert ended.stdout.splitlines() == [rb"[worker 0] caf\udce9", b"[2.0, 2.0]"]
    assert ended.stderr.splitlines() == [
        rb"[worker 0] caf\udce9",
        rb"[worker 0] caf\udce9 as bytes",
        rb"[worker 0] caf\udce9 logged",
        rb"caf\udce9.py:3: UserWarning: caf\udce9",
    ]


def test_what_a_worker_takes_over(place: Path) -> None:
    backward = """
        assert os.getcwdb().endswith(b"caf\\xe9")
        assert ctx.text == NAME
        assert str(np.array([np.nan])) == f"[{NAME}]"
        warnings.warn("no error")"""
    main = """
        np.set_printoptions(nanstr=NAME)
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", NAME, module=NAME)
        print(gradient())"""
    ended = run(place, backward, main)
    assert (ended.stdout, ended.stderr) == (b"[2.0, 2.0]\n", b"")


def test_what_a_worker_raises(place: Path) -> None:
    backward = """
        if what == "text": raise ValueError(NAME)
        if what == "file": open(NAME)
        warnings.warn(NAME)"""
    main = """
        warnings.filterwarnings("error", NAME)
        for what in ("text", "file", "warning"):
            try:
                gradient()
            except (ValueError, OSError, UserWarning) as error:
                same = error.args == (NAME,) or getattr(error, "filename", "") == NAME
                print(type(error).__name__, same)"""
    ended = run(place, backward, main)
    assert ended.stdout == b"ValueError True\nFileNotFoundError True\nUserWarning True\n"


def test_a_function_of_a_module_with_such_a_name(place: Path) -> None:
    (place / f"{NAME}.py").write_text("""
import mpgrad as mg

class Told(Exception):
    pass

class Triples(mg.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3.0

    @staticmethod
    def backward(ctx, grad):
        if (grad < 0).any():
            raise Told
        return grad * 3.0
""")
    main = """
        import importlib
        module = importlib.import_module(NAME)
        x = mg.tensor([1.0], requires_grad=True)
        module.Triples.apply(x).sum().backward()
        print(x.grad.tolist())
        module.Triples.run_on = "worker"
        try:
            (-module.Triples.apply(x)).sum().backward()
        except module.Told:
            print("told")
"""
    assert run(place, "pass", main).stdout == b"[3.0]\ntold\n"
