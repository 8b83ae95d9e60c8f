"""The machinery that runs PyTorch's tests, on a small file of our own: no network, no PyTorch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import mpgrad as mg
from conformance import page, source
from conformance.__main__ import main
from conformance.harness import difference
from conformance.isolation import outcomes
from conformance.methods import Method, Outcome, all_methods, load, reasons, run

FILE = """
import unittest
import torch
import torch.autograd.forward_ad as fwAD
from torch import nn, nowhere
from torch.autograd import Function, Variable
from torch.testing._internal.common_cuda import TEST_CUDA
from torch.testing._internal.common_utils import TestCase, parametrize, skipIfNoLapack, gradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from autograd.test_more import TestMore


class Mode(TorchDispatchMode):
    pass


class TestAutograd(TestCase):
    def setUp(self):
        super().setUp()
        self.x = torch.ones(3, requires_grad=True)

    @skipIfNoLapack
    def test_passes(self):
        (self.x * 2).sum().backward()
        self.assertEqual(self.x.grad, [2.0, 2.0, 2.0])
        self.assertTrue(gradcheck(torch.sin, (self.x.double(),), fast_mode=None))
        self.assertIsInstance(nn.Linear(1, 1), torch.nn.Module)
        with self.assertRaisesRegex(RuntimeError, "torch says so"):
            raise RuntimeError("mpgrad says so")

    def test_fails(self):
        self.assertEqual(self.x, [1.0, 1.0, 2.0])

    def test_misses(self):
        with self.assertRaises(ValueError):
            nowhere.at_all(self.x)

    def test_misses_deep(self):
        torch._C._nothing.here()

    @parametrize("a,b", [(1, 1), (2, 3)])
    def test_of_arguments(self, a, b):
        self.assertEqual(a, b)

    @unittest.skipIf(TEST_CUDA, "runs")
    def test_dies(self):
        import os
        os._exit(3)

    def test_hangs(self):
        import threading
        threading.Event().wait()
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("torch") / "test_autograd.py"
    made.write_text(FILE)
    return made


def outcome_of(path: Path, name: str) -> Outcome:
    return run(load(path), Method("TestAutograd", f"test_{name}", "group"), "local")


def test_torch_stands_for_mpgrad_in_the_file_alone(path: Path) -> None:
    before = sys.modules.get("torch")
    module = load(path)
    assert module.torch.ones is mg.ones
    assert module.Function is mg.Function
    assert sys.modules.get("torch") is before


def test_a_method_passes(path: Path) -> None:
    assert outcome_of(path, "passes") == Outcome("passed")


def test_a_method_fails_with_its_message(path: Path) -> None:
    status, message, details = outcome_of(path, "fails")
    assert (status, message) == ("failed", "AssertionError: [1.0, 1.0, 1.0] != [1.0, 1.0, 2.0]")
    assert "in test_fails" in details


@pytest.mark.parametrize(
    ("name", "missing"),
    [("misses", "torch.nowhere.at_all"), ("misses_deep", "torch._C._nothing.here")],
)
def test_a_missing_name_is_told(path: Path, name: str, missing: str) -> None:
    assert outcome_of(path, name)[:2] == ("missing", missing)


def test_every_row_of_arguments_counts(path: Path) -> None:
    assert outcome_of(path, "of_arguments")[:2] == ("failed", "AssertionError: 2 != 3")


def test_a_method_that_is_not_there_fails(path: Path) -> None:
    assert outcome_of(path, "unknown").status == "failed"


def outcomes_of(path: Path, names: list[str], seconds: float) -> list[Outcome]:
    module = load(path)
    methods = [Method("TestAutograd", f"test_{name}", "group") for name in names]
    here = os.getpid()

    def chosen(method: Method) -> Outcome:
        assert os.getpid() != here
        return run(module, method, "local")

    found = dict(outcomes(methods, chosen, jobs=2, seconds=seconds))
    return [found[method] for method in methods]


@pytest.mark.process
def test_methods_are_run_apart(path: Path) -> None:
    dead, alive = outcomes_of(path, ["dies", "passes"], seconds=60.0)
    assert (dead.status, dead.message) == ("crashed", "the process died")
    assert alive == Outcome("passed")


@pytest.mark.process
@pytest.mark.slow
def test_a_method_that_hangs_tells_where(path: Path) -> None:
    (hung,) = outcomes_of(path, ["hangs"], seconds=3.0)
    assert (hung.status, hung.message) == ("crashed", "took longer than 3 s")
    assert "threading.py" in hung.details


@pytest.mark.parametrize(
    ("x", "y", "same"),
    [
        (mg.ones(2), mg.ones(2), True),
        (mg.ones(2), mg.ones(2, 1), False),
        (mg.ones(2), mg.ones(2, dtype=mg.float64), False),
        (mg.ones(1), 1, True),
        (1.0, 1.0 + 1e-9, True),
        (1, 2, False),
        ((1, mg.ones(1)), [1, mg.ones(1)], True),
        ({"a": 1}, {"a": 2}, False),
        (mg.ones(1), None, False),
        ("a", "a", True),
        ([1], [1, 2], False),
    ],
)
def test_what_counts_as_equal(x: object, y: object, same: bool) -> None:
    assert (difference(x, y) is None) is same


def test_the_tables_name_methods_once_and_reasons_for_them_alone() -> None:
    methods = all_methods()
    assert len(methods) == len(set(methods)) == 291
    names = {reason.rpartition(": ")[2] for reason in reasons()}
    assert names <= {method.name for method in methods}
    assert all(reasons().values())


def test_what_is_unexpected_is_told() -> None:
    one, two = Method("A", "test_one", "group"), Method("A", "test_two", "group")
    found = {"local": {one: Outcome("failed"), two: Outcome("passed")}}
    assert page.unexpected(found, {}) == ["local: test_one fails, and left.toml has no reason"]
    assert page.unexpected(found, {"test_one": "why"}) == []
    assert page.unexpected(found, {"local: test_one": "why", "auto: test_two": "why"}) == []
    assert page.unexpected(found, {"test_one": "why", "test_two": "why"}) == [
        "local: test_two passes: its reason in left.toml can go"
    ]
    text = page.text([one, two], found, {"test_one": "because"})
    assert "| **all** | 2 | 1 |" in text
    assert "| `one` | because |" in text


def test_the_document_has_the_reasons() -> None:
    text = page.DOCUMENT.read_text()
    assert [name for name, why in reasons().items() if why not in text] == []


def test_without_apt_the_command_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"Put test_autograd\.py of PyTorch 2\.6"):
        source.autograd_tests(tmp_path / "folder")


@pytest.mark.process
def test_the_command_fails_where_a_method_does(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--file", str(path), "--mode", "local", "--only", "test_set_materialize_non"]
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    assert "local: 0 of 1 pass; 1 failed" in printed
    assert "left.toml has no reason" in printed
