"""Functions and classes that travel by value keep the names of their files."""

import pathlib
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


def test_a_process_has_code_once(namespace) -> None:
    first, second = (pickle.loads(dumps(namespace["outer"])) for _ in range(2))
    assert first is not second
    assert first.__code__ is second.__code__


def test_equal_code_keeps_its_own_file(namespace) -> None:
    other: dict[str, object] = {"__name__": "__main__"}
    exec(compile(SOURCE, "<cell 4>", "exec"), other)
    files = [
        files_of(pickle.loads(dumps(one["outer"])).__code__)
        for one in (namespace, other, namespace)
    ]
    assert files == [{"<cell 3>"}, {"<cell 4>"}, {"<cell 3>"}]


def test_equal_code_keeps_its_own_qualified_name(namespace) -> None:
    outer = namespace["outer"]
    kept = outer.__code__
    other = kept.replace(co_qualname="Named.outer")
    assert kept == other
    for code in (kept, other, kept):
        outer.__code__ = code
        assert pickle.loads(dumps(outer)).__code__.co_qualname == code.co_qualname


def test_code_with_odd_constants_travels(namespace) -> None:
    outer = namespace["outer"]
    kept = pathlib.PurePosixPath("a")  # no source makes such a constant
    outer.__code__ = outer.__code__.replace(co_consts=(*outer.__code__.co_consts, kept))
    found = pickle.loads(dumps(outer))
    assert found()() == 1
    assert found.__code__.co_consts[-1] == kept


@pytest.mark.parametrize(
    "body",
    ["return xml.dom.minidom.parseString", "return (lambda: xml.dom.minidom.parseString)()"],
)
def test_submodules_that_code_names_are_imported(body: str) -> None:
    """Also those that only inner code names, and those that are loaded after the first dump."""
    sender = (
        "import sys, xml\nfrom mpgrad.wire.code_pickles import dumps\n"
        f"exec(compile('def parse():\\n    {body}', '<cell>', 'exec'))\n"
        "dumps(parse)\nimport xml.dom.minidom\nsys.stdout.buffer.write(dumps(parse))"
    )
    data = subprocess.run([sys.executable, "-c", sender], capture_output=True, check=True).stdout
    receiver = "import pickle, sys\nprint(pickle.loads(sys.stdin.buffer.read())().__name__)"
    done = subprocess.run([sys.executable, "-c", receiver], input=data, capture_output=True)
    assert done.stdout.decode().strip() == "parseString", done.stderr.decode()
