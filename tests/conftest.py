"""What holds for all tests."""

from __future__ import annotations

import gc
import importlib.util
import signal
from typing import Any

import pytest

from tests.torch_outcomes import of_torch  # noqa: F401  (a fixture)

#: Where pytest's cache keeps the tests that were left out in their last run: no PyTorch was there.
LEFT_OUT = "mpgrad/left-out"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--left-out",
        action="store_true",
        help="run only the tests that were left out in their last run, because PyTorch was missing",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--left-out") and importlib.util.find_spec("torch") is None:
        raise pytest.UsageError("--left-out needs PyTorch: MPGRAD_TEST_ORACLE=1 installs it")
    if hasattr(config, "cache"):
        config.pluginmanager.register(LeftOut(config))


class LeftOut:
    """Remembers from run to run which tests found no PyTorch."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._known: dict[str, None] = dict.fromkeys(config.cache.get(LEFT_OUT, ()))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._config.getoption("--left-out"):
            others = [item for item in items if item.nodeid not in self._known]
            self._config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if item.nodeid in self._known]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.skipped and "could not import 'torch" in str(report.longrepr):
            self._known[report.nodeid] = None
        elif report.when == "call":
            self._known.pop(report.nodeid, None)

    def pytest_sessionfinish(self) -> None:
        if not hasattr(self._config, "workerinput"):  # of the processes of xdist the first writes
            self._config.cache.set(LEFT_OUT, list(self._known))


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_reaches_scripts() -> None:
    """A shell starts what runs in its background with SIGINT ignored, and children inherit that:
    a test that interrupts a script would wait for ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def old_objects_are_not_searched_again() -> None:
    """Many tests collect garbage to see what is left. Some million objects of pytest and of the
    oracles are older than the test: to look through them takes longer than most tests."""
    gc.collect()
    gc.freeze()
