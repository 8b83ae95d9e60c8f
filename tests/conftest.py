"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest

from mpgrad.calls import preloading
from mpgrad.engine import session_pool
from mpgrad.scheduler.tuning import MESSAGE_US
from mpgrad.wire.code_pickles import NAMED_MODULES
from tests.torch_outcomes import of_torch  # noqa: F401  (a fixture)

# Engines of tests have as many workers as without pytest-xdist, and failures show all frames.
for variable in ("PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_WORKER"):
    os.environ.pop(variable, None)
os.environ.setdefault("MPGRAD_TRACEBACK", "full")

# The same examples in every run, and none is judged by the time that it takes.
hypothesis.settings.register_profile(
    "any machine",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("any machine")


#: The folders whose slow tests run with ``-m long``.
WITHOUT_SLOW = ("benchmarks", "examples", "stress")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Mark what compares with PyTorch, and the slow tests of examples and of tools that no user
    runs."""
    for item in items:
        if item.path.parent.name in WITHOUT_SLOW and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.long)
        asks = "of_torch" in getattr(item, "fixturenames", ())
        if asks and not item.get_closest_marker("process"):
            item.add_marker(pytest.mark.torch)


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_reaches_scripts() -> None:
    """A shell starts what runs in its background with SIGINT ignored, and children inherit that:
    a test that interrupts a script would wait for ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def messages_cost_the_same() -> Iterator[None]:
    """Whatever an engine measures on this machine, plans are those of every other one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_pool, "measured_message_us", lambda _: MESSAGE_US)
        yield


@pytest.fixture(scope="module", autouse=True)
def workers_load_nothing_of_other_modules(request: pytest.FixtureRequest) -> Iterator[None]:
    """That a module before has imported ``mpgrad.torch`` changes how workers start."""
    kept = [*preloading.LIBRARIES]
    if "torch_programs" not in request.path.parts:
        preloading.LIBRARIES.clear()
        NAMED_MODULES.clear()
    yield
    preloading.LIBRARIES[:] = [*{*kept, *preloading.LIBRARIES}]


@pytest.fixture(scope="module", autouse=True)
def old_objects_are_not_searched_again() -> None:
    """Many tests collect garbage to see what is left. Some million objects of pytest and of the
    oracles are older than the test: to look through them takes longer than most tests."""
    gc.collect()
    gc.freeze()
