"""Runs tests of PyTorch's distributed autograd against mpgrad, in every rank of a program.

``mpgrad run --nproc-per-node 4 torch_on_hosts.py FOLDER CLASS.TEST...``, where FOLDER has PyTorch's
test files; each rank prints the name of each test that went well. A rank whose test fails ends at
once, since the others may wait for it. With ``--alone`` first, processes may leave during the test;
with ``--group``, it makes the process group itself; with ``--each``, each test begins and ends RPC.
"""

from __future__ import annotations

import enum
import functools
import os
import re
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpgrad as mg
import mpgrad.distributed as dist
import mpgrad.distributed.rpc as rpc
from conformance import harness
from conformance.stand_in import torch_stands_for_mpgrad
from mpgrad.distributed import futures
from mpgrad.distributed.carrier import zeromq_carrier
from mpgrad.distributed.rpc.current_service import current
from tests.leftovers import wait_until

RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
#: The files with these classes.
FILES = {
    "RpcTest": "rpc/rpc_test",
    "DistAutogradTest": "rpc/dist_autograd_test",
    "DistOptimizerTest": "rpc/dist_optimizer_test",
    "DdpUnderDistAutogradTest": "ddp_under_dist_autograd_test",
    "DdpComparisonTest": "ddp_under_dist_autograd_test",
    "RemoteModuleTest": "nn/api/remote_module_test",
}
FUTURES = ("Future", "collect_all", "wait_all")
_INTERNAL = "torch.testing._internal."
#: A profile of one rank's backward would also see the parts of the other ranks' backwards.
IN_ONE_RANK = ("test_dist_autograd_profiling",)


class Fixture(harness.TestCase):
    """``RpcAgentTestFixture``."""

    rank, world_size, worker_id = RANK, RANKS, RANK
    file_init_method = init_method = file_name = "env://"
    rpc_backend = rpc.BackendType.TENSORPIPE

    @property
    def rpc_backend_options(self) -> rpc.RpcBackendOptions:
        return rpc.RpcBackendOptions()

    def get_shutdown_error_regex(self) -> str:
        return "is lost|has ended"


def dist_init(test: Any = None, **_: Any) -> Any:
    """PyTorch's starts and ends RPC for each test; here they share it."""
    return test if test is not None else dist_init


def begins_and_ends(
    test: Any = None, setup_rpc: bool = True, clean_shutdown: bool = True, **_: Any
) -> Any:
    """``dist_init``, with ``--each``."""
    if test is None:
        return functools.partial(
            begins_and_ends, setup_rpc=setup_rpc, clean_shutdown=clean_shutdown
        )

    @functools.wraps(test)
    def run_it(self: Fixture) -> Any:
        if setup_rpc:
            rpc.init_rpc(f"worker{RANK}", self.rpc_backend)
        result = test(self)
        if setup_rpc:
            rpc.shutdown(graceful=clean_shutdown)
        return result

    return run_it


def initialize_pg(init_method: str, rank: int, world_size: int) -> None:
    if not dist.is_initialized():
        dist.init_process_group(init_method=init_method, rank=rank, world_size=world_size)


def noop() -> None:
    pass


def wait_until_node_failure(rank: int, expected_error_regex: str = ".*") -> str:
    seen: list[str] = []

    def has_failed() -> bool:
        try:
            rpc.rpc_sync(f"worker{rank}", noop)
        except Exception as error:
            seen.append(str(error))
        return any(re.search(expected_error_regex, text) for text in seen)

    assert wait_until(has_failed)
    return seen[-1]


class FileStore:
    """The store of the default process group: what ranks tell each other when one has died."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, key: str, value: str) -> None:
        (self._folder / key).write_text(value)

    def wait(self, keys: list[str], timeout: Any) -> None:
        assert wait_until(lambda: all((self._folder / key).exists() for key in keys))


def set_rpc_timeout(seconds: float) -> None:
    current.timeout_s = seconds


class Mode(enum.Enum):
    """``RPCExecMode``."""

    SYNC, ASYNC, ASYNC_JIT, REMOTE = range(4)


def given_in(folder: Path, how: str) -> Callable[[str], Any]:
    """What stands for names of PyTorch's test framework."""
    store = types.SimpleNamespace(_get_default_store=lambda: FileStore(folder))
    known: dict[str, Any] = {
        f"{_INTERNAL}distributed.rpc.rpc_agent_test_fixture.RpcAgentTestFixture": Fixture,
        f"{_INTERNAL}dist_utils.dist_init": begins_and_ends if how == "--each" else dist_init,
        f"{_INTERNAL}dist_utils.initialize_pg": initialize_pg,
        f"{_INTERNAL}dist_utils.INIT_METHOD_TEMPLATE": "env://",
        f"{_INTERNAL}dist_utils.wait_until_node_failure": wait_until_node_failure,
        f"{_INTERNAL}dist_utils.worker_name": lambda rank: f"worker{rank}",
        f"{_INTERNAL}common_distributed.skip_if_lt_x_gpu": lambda count: lambda test: test,
        "torch.distributed.rpc.internal.RPCExecMode": Mode,
        "torch.distributed.rpc._set_rpc_timeout": set_rpc_timeout,
        "torch.distributed.distributed_c10d": store,
        "torch.futures": futures,
        **{f"torch.futures.{name}": getattr(futures, name) for name in FUTURES},
        "torch.jit": harness.Lenient(),
    }
    return lambda name: known[name] if name in known else harness.given(name)


def load(path: Path, given: Callable[[str], Any]) -> types.ModuleType:
    """PyTorch's test file, found under its name by all ranks."""
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    judge_no_time(module)
    return module


class PatientThread(threading.Thread):
    """PyTorch's test waits 10 s for a thread, and then asserts that it still runs."""

    def join(self, timeout: float | None = None) -> None:
        super().join()


def judge_no_time(module: types.ModuleType) -> None:
    """Its clock stands still, so nothing takes too long on a busy machine; the run has a limit."""
    if hasattr(module, "time"):
        module.time = types.SimpleNamespace(time=lambda: 0.0, sleep=time.sleep)
        module.threading = types.SimpleNamespace(Thread=PatientThread)


def begin_anew(module: types.ModuleType) -> None:
    """Each test of PyTorch's has new processes."""
    if hasattr(module, "rpc_done"):
        module.rpc_done[:], module.ctx_ids[:] = [False] * 4, [-1] * 4
        module.known_context_ids.clear()


def run(module: types.ModuleType, cls: str, test: str) -> None:
    case = getattr(module, cls)(test)
    try:
        case.setUp()
        getattr(case, test)()
    except SystemExit:
        pass
    except BaseException:
        print(test, "failed:", traceback.format_exc().replace("\n", " | "), flush=True)
        os._exit(1)
    print(test, "passed", flush=True)


def end_of_group() -> None:
    """A test has begun it; the next one may begin another."""
    if dist.is_initialized():
        dist.destroy_process_group()


def main(folder: Path, names: list[str], how: str) -> None:
    zeromq_carrier.SILENCE_MS_MAX = 120_000  # on a busy machine a process may starve for seconds
    given = given_in(Path.cwd(), how)
    with torch_stands_for_mpgrad(given), mg.Engine("local"):
        files = {FILES[name.partition(".")[0]] for name in names}
        modules = {name: load(folder / f"{name}.py", given) for name in files}
        if how != "--each":
            rpc.init_rpc(f"worker{RANK}")
        if not how:
            dist.init_process_group()
        for name in names:
            cls, test = name.split(".")
            if RANK == 0 or test not in IN_ONE_RANK:
                run(modules[FILES[cls]], cls, test)
            if how == "--each":
                end_of_group()
            if not how:
                dist.barrier()
                begin_anew(modules[FILES[cls]])
                dist.barrier()
        if current.service is not None:
            rpc.shutdown(graceful=how != "--alone")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    given_how = arguments.pop(0) if arguments[0].startswith("--") else ""
    main(Path(arguments[0]), arguments[1:], given_how)
