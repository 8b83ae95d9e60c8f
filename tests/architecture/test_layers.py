"""The layers of the package: a folder is a layer, and imports go down only."""

from __future__ import annotations

import ast
from collections import defaultdict
from fnmatch import fnmatch
from itertools import pairwise

import pytest
from source_tree import PACKAGE, PURE, ROOT, Import, file_of, files, imports, late_imports, tree

#: From the top floor down: what lies in one line stands on all lines below it, and on nothing
#: beside it. Each name is a folder of the package, a folder in one, or a module that users import
#: from its top.
FLOORS = (
    "__init__ __main__ launch",
    "distributed/launch",
    "compat",
    "backends cuda fft func linalg masked multiprocessing profiler serialization signal special "
    "_C utils",
    "distributed",
    "data distributions nn optim torch",
    "tensor_methods",
    "parallel",
    "engine",
    "coordinator workers",
    "calls",
    "calls/custom_functions",
    "autograd",
    "ops",
    "recording/dispatch",
    "recording/tensors wire",
    "recording/graph",
    "arrays/cuda",
    "arrays/cpu",
    "scheduler shm",
    "errors base",
)

FLOOR_OF = {name: floor for floor, row in enumerate(reversed(FLOORS)) for name in row.split()}

#: Where a name is loaded when it is first used: what users call, and the entries of processes.
FACE = (
    "__init__", "compat", "launch", "distributed/launch", "tensor_methods", "*/__main__",
    "*_process",
)  # fmt: skip

#: Other imports inside functions: (file, module) -> why.
LATE = {
    ("arrays/cuda/device_arrays.py", "mpgrad.arrays.cuda.cuda_backend"): "few machines have a GPU",
    ("arrays/cuda/gpu_workers.py", "mpgrad.arrays.cuda.client_devices"): "few machines have a GPU",
    ("engine/coordinator_start.py", "mpgrad.arrays.cuda.client_devices"): "few machines have a GPU",
    ("workers/worker_parts.py", "mpgrad.workers.gpu_worker"): "few machines have a GPU",
    ("engine/engine.py", "mpgrad.engine.execution"): "`import mpgrad` and forward need no engine",
    ("engine/engine.py", "mpgrad.engine.coordinator_start"): "`local` needs no processes",
    ("engine/engine.py", "mpgrad.engine.cluster.ray_hosts"): "few engines have a cluster",
    ("engine/execution.py", "mpgrad.engine.cluster.branches_ahead"): "few engines have a cluster",
    ("wire/endpoint.py", "mpgrad.wire.zeromq"): "a process that has no engine loads no ZeroMQ",
    (
        "distributed/world.py",
        "mpgrad.distributed.carrier.zeromq_carrier",
    ): "nor does one without a group",
    ("workers/rules.py", "mpgrad.autograd.higher_order.backward_of"): "create_graph only",
    ("workers/task.py", "mpgrad.workers.calls"): "calls forward only",
    ("workers/task.py", "mpgrad.calls.initializing"): "Engine(initializer=...) only",
    (
        "coordinator/supervisor.py",
        "mpgrad.coordinator.worker_watchdog",
    ): "the workers start before that",
}

#: Foreign library -> the only files that may import it.
FOREIGN = {
    "zmq": "wire/zeromq.py distributed/carrier/zeromq_carrier.py",
    "cupy": "arrays/cuda/cuda_cupy.py",
    "ray": "distributed/launch/ray_cluster.py engine/cluster/ray_hosts.py",
    "torch": "torch/*",
    # The product is not to lean on what is beside it, nor on what only that needs.
    "rich": "launch/top_command.py",
    **dict.fromkeys(("benchmarks", "examples", "stress", "tests", "psutil"), ""),
}

#: What the scheduler's purity allows (see CONTRIBUTING.md).
SCHEDULER_STDLIB = frozenset(
    {
        "__future__",
        "bisect",
        "collections",
        "dataclasses",
        "enum",
        "heapq",
        "itertools",
        "math",
        "typing",
    }
)
SCHEDULER_WORDS = frozenset({"errors.py", "base/device.py", "base/handles.py", "base/ids.py"})

VAGUE_NAMES = frozenset({"utils", "common", "helpers", "misc", "manager", "core"})

#: Names of PyTorch's modules, which users import: they stand beside the file that does the work.
PYTORCHS_MODULES = frozenset(
    {
        "_C/_functions",
        "autograd/_functions",
        "autograd/functional",
        "autograd/profiler",
        "backends/cuda",
        "cuda",
        "fft",
        "linalg",
        "nn/functional",
        "profiler",
        "special",
        "utils/checkpoint",
        "utils/data",
    }
)


def home(file: str) -> str:
    """The room, or top-level module, of a file: ``calls/custom_functions``, or ``calls``."""
    parts = file.removesuffix(".py").split("/")
    inner = "/".join(parts[:2])
    return inner if inner in FLOOR_OF else parts[0]


def complaint(found: Import) -> str | None:
    """Why an import breaks the rule of the layers; None if it does not."""
    target = file_of(found.module)
    if target is None or home(target) == home(found.file):
        return None
    if target == "__init__.py" or found.file.endswith("__main__.py"):
        return None  # the package itself; the entry of a process
    here, there = FLOOR_OF[home(found.file)], FLOOR_OF[home(target)]
    if there < here:
        return None
    way = "upward" if there > here else "from one folder to another of the same floor"
    return f"{found.file}:{found.line} imports {target}: {way}"


#: Folders that only hold others.
ROOFS = {"arrays", "recording"}


def test_every_file_has_a_floor() -> None:
    assert {home(file) for file in files()} - ROOFS == set(FLOOR_OF)
    assert {f"{roof}/__init__.py" for roof in ROOFS} == {
        file for file in files() if home(file) in ROOFS
    }


def test_imports_only_go_down() -> None:
    """For type checkers, too: what a file speaks of lies below it."""
    complaints = [
        complaint(found) for file in files() if home(file) not in ROOFS for found in imports(file)
    ]
    assert [text for text in complaints if text] == []


@pytest.mark.parametrize(
    ("file", "module", "expected"),
    [
        ("recording/tensors/tensor.py", "mpgrad.engine.engine", "upward"),
        ("scheduler/plan.py", "mpgrad.shm.segment", "same floor"),
        ("recording/tensors/tensor.py", "mpgrad.recording.graph.node.Node", None),
        ("autograd/running/engine_slot.py", "mpgrad.engine.engine.Engine", "upward"),
    ],
)
def test_the_rule_itself(file: str, module: str, expected: str | None) -> None:
    assert file_of(module) is not None
    text = complaint(Import(file, 1, module, type_checking=True))
    assert text is None if expected is None else text is not None and expected in text


def test_no_file_imports_itself_in_a_circle() -> None:
    below = {
        file: {
            target
            for found in imports(file)
            if not found.type_checking and (target := file_of(found.module)) not in (None, file)
        }
        for file in files()
    }
    done: set[str] = set()
    for start in files():
        path: list[str] = []
        _walk(start, below, path, done)


def _walk(file: str, below: dict[str, set[str]], path: list[str], done: set[str]) -> None:
    assert file not in path, " -> ".join([*path[path.index(file) :], file])
    if file in done:
        return
    for target in below[file]:
        _walk(target, below, [*path, file], done)
    done.add(file)


def test_names_are_loaded_late_at_the_public_face_only() -> None:
    found = {
        (entry.file, module)
        for file in files()
        for entry in late_imports(file)
        if (module := _module(entry)) is not None
        if not any(fnmatch(file.removesuffix(".py"), face) for face in FACE)
        if home(file) not in FACE
    }
    assert found == set(LATE)


def _module(found: Import) -> str | None:
    target = file_of(found.module)
    if target is None:
        return None
    return "mpgrad." + target.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_a_file_name_means_one_thing() -> None:
    by_name = defaultdict(list)
    for file in files():
        path = file.removesuffix(".py")
        if path.rpartition("/")[2] in ("__init__", "__main__") or path in PYTORCHS_MODULES:
            continue
        by_name[path.rpartition("/")[2]].append(path)
    assert [paths for paths in by_name.values() if len(paths) > 1] == []


def test_a_class_name_means_one_thing() -> None:
    by_name = defaultdict(list)
    for file in files():
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ClassDef):
                by_name[node.name].append(file)
    twice = {name: places for name, places in by_name.items() if len(places) > 1}
    assert twice == TWICE


#: The stand-in for ``torch.Tensor`` has its name; PyTorch calls two things a WorkerInfo; a
#: DataParallel is around a Module of mpgrad's or of PyTorch's.
TWICE = {
    "DataParallel": ["nn/parallel.py", "torch/cpu_data_parallel.py"],
    "Tensor": ["compat/tensor_type.py", "recording/tensors/tensor.py"],
    "WorkerInfo": ["data/loader_worker.py", "distributed/rpc/service.py"],
}


def test_the_architecture_shows_these_floors() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = [line.split("|")[2].split() for line in text.split("\n") if line.startswith("| floor ")]
    shown = [{name.strip("`/,") for name in row} for row in rows]
    assert shown == [set(row.split()) for row in FLOORS]
    assert all(len(low | high) == len(low) + len(high) for low, high in pairwise(shown))


@pytest.mark.parametrize("library", FOREIGN)
def test_a_foreign_library_has_its_one_place(library: str) -> None:
    strangers = [
        f"{file}:{found.line}"
        for file in files()
        if not any(fnmatch(file, pattern) for pattern in FOREIGN[library].split())
        for found in imports(file)
        if found.module.split(".")[0] == library
    ]
    assert strangers == []


def test_what_a_thread_keeps_travels_with_its_backward() -> None:
    """Nested backwards go on on other threads: see ``base/thread_state.py``."""
    homes = [file for file in files() if "threading.local" in (PACKAGE / file).read_text()]
    assert homes == ["base/thread_state.py"]


def test_the_coordinator_imports_no_array_library() -> None:
    found = [
        f"{file}:{entry.line}"
        for file in files()
        if file.startswith(("coordinator/", "scheduler/"))
        for entry in imports(file)
        if entry.module.split(".")[0] in ("numpy", "cupy") and not entry.type_checking
    ]
    assert found == []


def test_the_scheduler_imports_next_to_nothing() -> None:
    strangers = []
    for file in files():
        if not file.startswith(PURE):
            continue
        for found in imports(file):
            target = file_of(found.module)
            own = target is not None and (target.startswith(PURE) or target in SCHEDULER_WORDS)
            if not own and found.module.split(".")[0] not in SCHEDULER_STDLIB:
                strangers.append(f"{file}:{found.line}: {found.module}")
    assert strangers == []


#: PyTorch's users look for these names there; the files that they come from tell what they do.
PYTORCHS_UTILS = ("utils/", "nn/utils.py")


def test_files_are_called_after_what_they_do() -> None:
    assert [
        file
        for file in files()
        if VAGUE_NAMES & set(file.removesuffix(".py").split("/"))
        and not file.startswith(PYTORCHS_UTILS)
    ] == []


def test_utils_only_repeats_names() -> None:
    defined = [
        f"{file}:{node.lineno}"
        for file in files()
        if file.startswith(PYTORCHS_UTILS)
        for node in ast.walk(tree(file))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    assert defined == []


def test_every_package_says_that_it_is_one() -> None:
    # A directory without __init__.py would be importable all the same, and left out of the wheel.
    packages = {file.rpartition("/")[0] for file in files()}
    assert [path for path in packages if f"{path}/__init__.py".lstrip("/") not in files()] == []
