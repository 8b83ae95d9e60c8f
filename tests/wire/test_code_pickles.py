"""Functions and classes that travel by value keep the names of their files."""

import pickle
import subprocess
import sys
from types import CodeType

import pytest

from mpgrad.wire.code_pickles import dumps

SOURCE = """
def outer():
    def inner():
        return 1
    return inner

class Named:
    def method(self):
        return [x for x in (1, 2)]
"""


def files_of(code: CodeType) -> set[str]:
    inner = [files_of(each) for each in code.co_consts if isinstance(each, CodeType)]
    return {code.co_filename}.union(*inner)


@pytest.fixture
def namespace() -> dict[str, object]:
    found: dict[str, object] = {"__name__": "__main__"}
    exec(compile(SOURCE, "<cell 3>", "exec"), found)
    return found


def test_the_name_of_a_file_travels(namespace) -> None:
    outer = pickle.loads(dumps(namespace["outer"]))
    named = pickle.loads(dumps(namespace["Named"]))
    assert outer()() == 1
    assert named().method() == [1, 2]
    assert files_of(outer.__code__) | files_of(named.method.__code__) == {"<cell 3>"}


def test_the_bytes_are_the_same_in_each_process() -> None:
    """They name what a worker already has."""
    program = (
        "import hashlib\nfrom mpgrad.wire.code_pickles import dumps\n"
        f"exec(compile({SOURCE!r}, '<cell 3>', 'exec'))\n"
        "print(hashlib.sha256(dumps(outer) + dumps(Named.method)).hexdigest())"
    )
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert len({run.stdout for run in runs}) == 1
