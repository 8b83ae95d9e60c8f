"""The layers of the package: imports go down only, and each foreign library has its one place."""

from __future__ import annotations

import ast
from fnmatch import fnmatch

import pytest
from source_tree import PACKAGE, Import, file_of, files, imports, tree

#: (layer, package, files). Packages on one layer do not import each other. The first match counts.
LAYERS = (
    (
        9,
        "entry points",
        "__init__ __main__ _C/* cuda fft func linalg special profiler launch/* utils/* compat/*",
    ),
    (8, "serialization", "serialization"),
    (8, "nn", "nn/*"),
    (8, "distributions", "distributions/*"),
    (8, "optim", "optim/*"),
    (8, "data", "data/*"),
    (8, "checkpointing", "checkpointing/*"),
    (7, "engine", "engine/*"),
    (6, "coordinator", "coordinator/*"),
    (6, "workers", "workers/*"),
    (4, "dispatch", "dispatch operator_node autograd/views/view"),
    (3, "wire", "wire/*"),
    (3, "tensor", "tensor"),
    (3, "tensor", "autograd/engine_slot autograd/modes/operator_mode"),
    (3, "tensor", "autograd/nodes/accumulate_grad"),
    (3, "tensor", "autograd/saved/saved_tensor autograd/saved/saved_attributes"),
    (3, "tensor", "autograd/saved/saved_tensor_clones"),
    (2, "graph", "device_arrays storage autograd/grad_mode autograd/anomaly_mode"),
    (2, "graph", "autograd/saved/hooks_in_force"),
    (2, "graph", "autograd/nodes/node autograd/nodes/hooks autograd/nodes/assigned_grad"),
    (2, "graph", "autograd/nodes/executing autograd/modes/context_decorator"),
    (2, "graph", "autograd/running/thread_state autograd/running/interrupts"),
    (3, "tensor", "autograd/running/*"),
    (2, "registry", "ops/__init__ ops/registry ops/node_names ops/call_source"),
    (1, "scheduler", "scheduler/*"),
    (1, "shm", "shm/*"),
    (1, "backends", "backends/*"),
    (
        0,
        "basic types",
        "config device dtype dtypes errors exits generated_code handles hash_seed ids lazy machine",
    ),
    (0, "basic types", "standard_streams hook_for_tests limits memory_formats missing_names size"),
    (5, "front end", "tensor_methods/* autograd/* ops/*"),
)

#: Imports that the rules forbid and that are right all the same: (file, module) -> why.
EXCEPTIONS = {
    ("tensor_methods/attach.py", "mpgrad.engine.engine"): (
        "the default engine is loaded on the first backward"
    ),
}

#: Foreign library -> the only files that may import it.
FOREIGN = {
    "zmq": "wire/zeromq.py",
    "cupy": "backends/cuda*.py shm/cuda_cupy.py",
    "ray": "distributed/*",
    "torch": "",
    # The product is not to lean on what is beside it, nor on what only that needs.
    **dict.fromkeys(
        ("benchmarks", "examples", "simulation", "stress", "tests", "psutil", "rich"), ""
    ),
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
SCHEDULER_WORDS = frozenset({"errors.py", "device.py", "handles.py", "ids.py"})

VAGUE_NAMES = frozenset({"utils", "common", "helpers", "misc", "manager", "core"})


def place(file: str) -> tuple[int, str] | None:
    """(layer, package) of a file of the package."""
    name = file.removesuffix(".py")
    for layer, package, patterns in LAYERS:
        if any(fnmatch(name, pattern) for pattern in patterns.split()):
            return layer, package
    return None


def is_excepted(found: Import) -> bool:
    return any(
        found.file == file and (found.module == module or found.module.startswith(f"{module}."))
        for file, module in EXCEPTIONS
    )


def complaint(found: Import) -> str | None:
    """Why an import breaks the rule of the layers; None if it does not."""
    target = file_of(found.module)
    if target is None or found.type_checking or is_excepted(found):
        return None
    here, there = place(found.file), place(target)
    if here is None or there is None:
        return None  # test_every_file_has_a_layer says so
    where = f"{found.file}:{found.line} (layer {here[0]}) imports {target} (layer {there[0]})"
    if there[0] > here[0]:
        return f"{where}: upward"
    if there[0] == here[0] and there[1] != here[1]:
        return f"{where}: from package {here[1]} to package {there[1]}"
    return None


def test_every_file_has_a_layer() -> None:
    assert [file for file in files() if place(file) is None] == []


def test_imports_only_go_down() -> None:
    complaints = [complaint(found) for file in files() for found in imports(file)]
    assert [text for text in complaints if text] == []


@pytest.mark.parametrize(
    ("file", "module", "expected"),
    [
        ("tensor.py", "mpgrad.engine.engine", "upward"),
        ("scheduler/plan.py", "mpgrad.shm.segment", "package"),
        ("tensor.py", "mpgrad.autograd.nodes.node.Node", None),
        ("tensor_methods/attach.py", "mpgrad.engine.engine.Engine", None),
    ],
)
def test_the_rule_itself(file: str, module: str, expected: str | None) -> None:
    if file_of(module) is None or file_of(module) == "__init__.py":
        pytest.skip(f"{module} does not exist yet")
    text = complaint(Import(file, 1, module, type_checking=False))
    assert text is None if expected is None else expected in text


@pytest.mark.parametrize("library", FOREIGN)
def test_a_foreign_library_has_its_one_place(library: str) -> None:
    strangers = [
        f"{file}:{found.line}"
        for file in files()
        if not any(fnmatch(file, pattern) for pattern in FOREIGN[library].split())
        for found in imports(file)
        if found.module.split(".")[0] == library and not is_excepted(found)
    ]
    assert strangers == []


def test_what_a_thread_keeps_travels_with_its_backward() -> None:
    """Nested backwards go on on other threads: see ``autograd/running/thread_state.py``."""
    homes = [file for file in files() if "threading.local" in (PACKAGE / file).read_text()]
    assert homes == ["autograd/running/thread_state.py"]


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
        if not file.startswith("scheduler/"):
            continue
        for found in imports(file):
            target = file_of(found.module)
            own = target is not None and (
                target.startswith("scheduler/") or target in SCHEDULER_WORDS
            )
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
