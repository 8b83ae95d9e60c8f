"""Runs PyTorch's tests of collectives and of DistributedDataParallel, in every rank of a program.

``mpgrad run --nproc-per-node 4 torch_on_groups.py FOLDER TEST...``, where FOLDER has PyTorch's test
files; each rank prints the name of each test that went well. A rank whose test fails ends at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import mpgrad as mg
import mpgrad.distributed as dist
from conformance import harness
from conformance.stand_in import torch_stands_for_mpgrad
from mpgrad.distributed import futures
from mpgrad.distributed.algorithms.ddp_comm_hooks import default_hooks
from tests.leftovers import wait_until

RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
_INTERNAL = "torch.testing._internal.common_"
_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."

#: The tests place tensors on the GPU of their rank; here they stay on the CPU.
_GPUS = (
    (r"\.cuda\((?:[^()]|\([^()]*\))*\)", ""),
    (r"\.to\((self\.rank|rank|device_id|device)\)", ""),
    (r"torch\.cuda\.current_device\(\)", '"cpu"'),
    (r"device_ids=(\[[^\]]*\]|gpu_subset|gpus|device_ids)", "device_ids=None"),
    (r"output_device=(?:[^(),]|\([^()]*\))*", "output_device=None"),
    (r"(?<!_)device=((self\.|my_)?rank|device(_id)?|0|\"cuda\")(?=[,)\s])", 'device="cpu"'),
    (r"torch\.device\((?:next_)?rank\)", 'torch.device("cpu")'),
    (r"torch\.device\(\"cuda(?:[^()]|\([^()]*\))*\)", 'torch.device("cpu")'),
)
#: Images for which four processes on the CPU of one machine have no memory.
_LARGE = ((r"torch\.ones\(batch, batch, dim, dim", "torch.ones(batch, batch, 20, 20"),)
#: What they take from private attributes, and what a program says in its place.
_PRIVATE = (
    (r"group_id\.allreduce\((\[([^\]]*)\]|(tensors))\)", r"all_reduced(\1, group_id)"),
    (r"process_group\.monitored_barrier\(", "dist.monitored_barrier(process_group, "),
    (r"model\.reducer\._get_local_used_map\(\)", "None"),
    (r"self\.assertTrue\(ddp_logging_data\.get\(\"join_uneven_inputs\"\)\)", "pass"),
    (r"net\._get_ddp_logging_data\(\)", "{}"),
    (r"net\._authoritative_rank", "(dist.get_world_size() - 1)"),
    (r"torch\.Tensor\(\[", "torch.FloatTensor(["),
    (r"join_config = net\._join_config\n\s*self\.assertFalse\(join_config\.enable\)", "pass"),
    (r"self\.assertEqual\(variable_usage_tensor, expected\)", "pass"),
)


class Barrier:
    """Of all ranks, also where their group is over."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0

    def __call__(self, *_: Any, **__: Any) -> None:
        self._count += 1
        (self._folder / f"{self._count}.{RANK}").touch()
        others = [self._folder / f"{self._count}.{rank}" for rank in range(RANKS)]
        assert wait_until(lambda: all(other.exists() for other in others))


class Case(harness.TestCase):
    """``MultiProcessTestCase``."""

    rank, world_size, init_method, file_name = RANK, RANKS, "env://", ""

    def assertGreaterAlmostEqual(self, a: float, b: float, msg: Any = None, **_: Any) -> None:
        self.assertGreaterEqual(a, b - 1e-2, msg)  # noqa: PT009


class Cases:
    """``DistTestCases``: what the backends can do."""

    skip_collective: ClassVar = dict.fromkeys(
        ("allgather_coalesced", "reduce", "sendrecv anysource", "cpu barrier"), frozenset[str]()
    )
    backend_feature: ClassVar = {
        **dict.fromkeys(("gpu", "cuda", "ddp", "subgroup"), frozenset(("gloo",))),
        "plugin": frozenset[str](),
    }


@contextlib.contextmanager
def captured_output() -> Iterator[tuple[StringIO, StringIO]]:
    out, err = StringIO(), StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


def always(*_: Any, **__: Any) -> Callable[[Any], Any]:
    """Decorates a test that is run whatever PyTorch's own backends and GPUs are."""
    return lambda test: test


def all_reduced(tensors: list[mg.Tensor], group: Any) -> dist.Work:
    work = dist.all_reduce(tensors[0], group=group, async_op=True)
    assert work is not None
    return work


def given() -> Callable[[str], Any]:
    """What stands for names of PyTorch's test framework, and of its private parts."""
    in_nothing = lambda *_, **__: contextlib.nullcontext()  # noqa: E731
    nothing = lambda *_, **__: None  # noqa: E731
    known: dict[str, Any] = {
        f"{_INTERNAL}distributed.DistTestCases": Cases,
        f"{_INTERNAL}distributed.MultiProcessTestCase": Case,
        f"{_INTERNAL}distributed.TEST_SKIPS": {},
        f"{_INTERNAL}distributed.captured_output": captured_output,
        f"{_INTERNAL}distributed.init_multigpu_helper": lambda n, _: {k: [k] for k in range(n)},
        f"{_INTERNAL}distributed.verify_ddp_error_logged": nothing,
        f"{_INTERNAL}utils.skip_but_pass_in_sandcastle": always,
        f"{_INTERNAL}utils.skip_but_pass_in_sandcastle_if": always,
        f"{_INTERNAL}utils.IS_LINUX": False,  # many tests are skipped there for their GPUs
        "torch.autograd.profiler.profile": in_nothing,
        "torch.backends.cudnn": types.SimpleNamespace(flags=in_nothing),
        "torch.cuda.device_count": lambda: RANKS,
        "torch.cuda.manual_seed": nothing,
        "torch.cuda.set_device": nothing,
        "torch.cuda.synchronize": nothing,
        "torch.distributed.DebugLevel": types.SimpleNamespace(OFF=0, INFO=1, DETAIL=2),
        "torch.distributed.distributed_c10d._get_default_group": lambda: dist.group.WORLD,
        "torch.distributed.distributed_c10d.get_world_size": dist.get_world_size,
        "torch.distributed._rank_not_in_group": lambda group: group.rank() < 0,
        "torch.distributed.get_debug_level": lambda: 1,
        f"{_HOOKS}powerSGD_hook": types.SimpleNamespace(
            powerSGD_hook=default_hooks.allreduce_hook, PowerSGDState=nothing
        ),
        "torch.futures": futures,
        "torch.utils.data.distributed.DistributedSampler": mg.data.DistributedSampler,
    }
    known |= {
        f"{_INTERNAL}distributed.skip_if_{what}": lambda test: test
        for what in ("no_gpu", "odd_worldsize", "small_worldsize", "rocm_multiprocess")
    }
    known |= {
        f"{_INTERNAL}distributed.{what}": always
        for what in (
            "nccl_skip_if_lt_x_gpu", "require_n_gpus_for_nccl_backend", "requires_nccl_version",
            "skip_if_lt_x_gpu", "with_dist_debug_levels",
        )
    }  # fmt: skip
    return lambda name: known[name] if name in known else harness.given(name)


def load(path: Path, barrier: Barrier) -> type[Any]:
    """PyTorch's tests, found under their module's name by all ranks."""
    os.environ["BACKEND"] = "gloo"
    text = path.read_text()
    for pattern, instead in (*_GPUS, *_LARGE, *_PRIVATE):
        text = re.sub(pattern, instead, text)
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    vars(module)["all_reduced"] = all_reduced
    exec(compile(text, str(path), "exec"), vars(module))
    bases = (module.TestDistBackend, module.DistributedTest._DistTestBase)
    own = {
        "setUp": harness.TestCase.setUp, "tearDown": lambda _: None, "world_size": RANKS,
        "init_method": "env://", "_barrier": lambda _, *args, **options: barrier(),
    }  # fmt: skip
    return type("TestDistBackendWithSpawn", bases, own)


def run(cases: type[Any], test: str, barrier: Barrier) -> None:
    """Each test of PyTorch's has a process group of its own."""
    dist.init_process_group(timeout=timedelta(seconds=120))
    case = cases(test)
    try:
        case.setUp()
        method = getattr(cases, test)
        if getattr(method, "__unittest_skip__", False):  # it fails in PyTorch
            method = method.__wrapped__
        method(case)
        barrier()
    except BaseException:
        print(test, "failed:", traceback.format_exc().replace("\n", " | "), flush=True)
        os._exit(1)
    if dist.is_initialized():
        dist.destroy_process_group()
    print(test, "passed", flush=True)


def main(folder: Path, tests: list[str]) -> None:
    here = Path.cwd()
    os.environ["TEMP_DIR"] = str(here)
    for name in ("barriers", "test_dir"):
        (here / name).mkdir(exist_ok=True)
    barrier = Barrier(here / "barriers")
    with torch_stands_for_mpgrad(given()), mg.Engine("local"):
        cases = load(folder / "distributed_test.py", barrier)
        for test in tests:
            run(cases, test, barrier)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
