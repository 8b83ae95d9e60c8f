"""A pytest plugin: the tests of the front end with their tensors on a GPU instead of the CPU.

    MPGRAD_CUDA_DRIVER=tests.cuda.fake_driver:two_gpus python -m pytest \\
        -p tests.cuda.everything_on_gpu -m "not process and not gpu" tests/semantics tests/data

New tensors come to the GPU, also those of ``from_numpy``; where a test looks at the values, they
are copied back. With ``MPGRAD_GPUS=all`` and ``-m process`` their Nodes run in GPU workers. What a
test says about memory shared with NumPy does not hold then: such tests are in ``NOT_ON_GPUS``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.arrays.cuda import cuda_driver
from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.new_tensors import creation
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.tensor_methods import numpy_functions
from tests.cuda.ipc import skip_or_be_silent
from tests.semantics import paired

#: Tests of what is otherwise on a GPU (whose kernels know nothing of NumPy's error state), of no
#: tensor, or in another thread than the one whose default device is.
NOT_ON_GPUS = (
    "test_numpy_shares_memory",
    "test_repr_tells_of_the_graph",
    "test_what_numpy_computed_counts_as_constant",
    "test_jvp_refuses_a_backward_that_numpy_computed",
    "test_numpys_error_state_is_the_callers",
    "test_the_document_is_what_the_tests_show",
    "test_multithreading_can_be_switched_off",
    "test_names_metadata_and_numbers",
    "test_a_shared_leaf_gets_the_sum",
    "test_a_view_with_the_strides_of_a_transposed_base",
    "test_a_view_that_a_dense_copy_could_not_have",
    # What they ask for is done by workers of the CPU. With a default device, Functions run in the
    # calling process.
    "test_branches_run_on_several_workers",
    "test_functions_on_workers_have_ranges",
    "test_two_functions_run_in_two_processes_at_once",
    "test_ranges_name_the_worker_and_lie_on_one_clock",
)


def _as_numpy(self: Tensor, *, force: bool = False) -> Any:
    host = Tensor(on_host(self._array), requires_grad=self.requires_grad)
    return _plain_as_numpy(host, force=force)


def _from_numpy(array: Any) -> Tensor:
    return _plain_from_numpy(array).to(mg.get_default_device())


def _seen(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = Tensor(on_host(value._array), requires_grad=value.requires_grad)
    return _plain_seen(value)


_plain_as_numpy, _plain_from_numpy = numpy_functions.as_numpy, creation.from_numpy
_plain_seen = paired._tensor


@pytest.fixture(autouse=True)
def tensors_on_the_gpu(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    if cuda_driver.driver().name == "cupy":
        skip_or_be_silent(request.node, monkeypatch)
    monkeypatch.setenv("MPGRAD_ENGINE", "local")
    monkeypatch.setattr(Tensor, "numpy", _as_numpy)
    monkeypatch.setattr(numpy_functions, "as_numpy", _as_numpy)
    monkeypatch.setattr(creation, "from_numpy", _from_numpy)
    monkeypatch.setattr(mg, "from_numpy", _from_numpy)
    monkeypatch.setattr(paired, "_tensor", _seen)
    mg.set_default_device("cuda")
    yield
    mg.set_default_device(None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if item.name.partition("[")[0] in NOT_ON_GPUS]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
