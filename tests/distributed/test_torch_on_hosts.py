"""PyTorch's tests of calls, distributed autograd and its optimizer, under their names, in ranks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.distributed.ranks import Ran, run_ranks
from tests.distributed.torch_on_hosts import IN_ONE_RANK

#: Where PyTorch is not installed, they are skipped.
pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).with_name("torch_on_hosts.py").read_text()
FOLDER = "testing/_internal/distributed"

#: Of ``DistAutogradTest``, run one after another by the same processes.
TOGETHER = """
test_autograd_context test_nested_context test_graph_for_builtin_call test_graph_for_python_call
test_graph_for_builtin_remote_call test_graph_for_python_remote_call test_graph_for_py_nested_call
test_graph_for_py_nested_remote_call test_graph_for_py_nested_call_itself
test_graph_for_py_nested_remote_call_itself test_no_graph_with_tensors_not_require_grad
test_no_graph_with_tensors_not_require_grad_remote test_grad_only_on_return_value
test_grad_only_on_return_value_remote test_rpc_complex_args test_remote_complex_args
test_context_cleanup_tensor_with_grad test_context_cleanup_tensor_no_grad
test_context_cleanup_no_tensors test_context_cleanup_nested_rpc test_worker_ids_recorded
test_error_in_context test_backward_no_grad_on_tensor test_backward_simple test_backward_simple_self
test_backward_rref test_backward_rref_multi test_backward_rref_nested test_trainer_ps
test_backward_multiple_round_trips test_backward_different_tensor_dims test_backward_unused_tensors
test_backward_multiple_output_tensors test_backward_autograd_engine_error
test_backward_without_context test_backward_without_rpc test_backward_invalid_args
test_backward_multiple_roots test_backward_different_dtypes test_backward_simple_python_udf
test_backward_complex_python_udf test_backward_python_udf_error test_backwards_nested_python_udf
test_mixed_requires_grad test_debug_info test_async_dist_autograd test_backward_accumulate_grads
test_nested_backward_accumulate_grads test_multiple_backward test_multiple_backward_with_errors
test_backward_verify_hooks test_no_grad_copy test_post_hooks test_thread_local_context_id
test_dist_autograd_profiling
"""

#: Processes leave during these.
ALONE = """
test_backward_node_failure test_backward_node_failure_python_udf test_clean_context_during_backward
"""

#: Of ``RpcTest``, each of which begins and ends RPC. Left out are those of private functions, of
#: TorchScript, of profiles, of texts that name PyTorch or its classes, of sums of two numbers, and
#: of a world of one rank beside the others; and where another behaviour is meant: an error keeps
#: its type, a strided tensor arrives contiguous, ``remote()`` does not wait for the value's type.
CALLS = """
test_worker_id test_self_add test_self_py_udf_remote test_self_remote_rref_as_rpc_arg
test_self_remote_rref_as_self_rpc_arg test_self_remote_rref_as_remote_arg
test_self_remote_rref_as_self_remote_arg test_rref_proxy_tensor test_rref_proxy_tensor_self
test_rref_proxy_reuse test_rref_proxy_class test_rref_proxy_class_self test_duplicate_name_2
test_reinit test_add test_int_callee test_add_with_id test_scalar_add test_async_add test_nonzero
test_multi_rpc test_future_wait_twice test_graceful_shutdown_with_uneven_workload
test_shutdown_followed_by_rpc test_expected_src test_py_built_in test_py_user_defined
test_py_class_constructor test_py_class_instance_method test_py_class_method
test_py_class_static_method test_py_multi_async_call test_py_no_return_result test_py_tensors
test_py_tensors_multi_async_call test_py_tensors_in_container test_py_function_exception
test_py_raise_in_user_func_escaped_str test_nested_rpc test_builtin_remote_ret
test_builtin_remote_self test_multi_builtin_remote_ret test_py_udf_remote test_multi_py_udf_remote
test_py_rref_args test_py_rref_args_user_share test_py_rpc_rref_args test_nested_remote
test_nested_rref test_multi_layer_nested_async_rpc test_remote_with_exception test_rpc_return_rref
test_rref_forward_chain test_local_rref_no_fork test_return_local_rrefs test_owner_equality
test_pass_local_rrefs test_remote_same_worker test_call_method_on_rref test_local_shutdown
test_handle_send_exceptions test_deadlock test_local_shutdown_with_rpc test_dist_init_decorator
test_non_garbage_collected_user_rref_due_to_local_circular_dependency test_user_rrefs_confirmed
test_user_rrefs_confirmed_remote test_remote_throw test_callback_simple test_callback_multi
test_callback_chain test_callback_in_rpc test_callback_with_ret test_callback_with_error
test_add_done_callback test_mark_future_twice test_future_done test_future_done_exception
test_async_function_raise test_async_function_raise_async test_async_function_raise_remote
test_async_function_simple test_async_function_chained test_async_function_chained_remote
test_async_function_nested test_async_function_nested_remote test_async_static_method
test_async_static_method_remote test_async_function_multi_chained
test_async_function_multi_chained_async test_async_function_multi_chained_remote
test_init_pg_then_rpc test_init_rpc_then_pg test_wait_all_with_exception
test_wait_all_with_partial_exception test_wrong_types test_owner_rref_backward test_send_to_rank
test_wait_all_exit_early_python test_wait_all_exit_early_builtin test_callback_none
test_future_in_rpc test_future_nested_callback test_async_function_with_future_ctor
test_async_function_with_future_ctor_remote test_async_class_method test_async_class_method_remote
test_async_class_rref_proxy test_async_class_rref_proxy_async test_async_class_rref_proxy_remote
test_init_rpc_twice test_stress_light_rpc test_stress_heavy_rpc test_nested_rref_stress
test_my_parameter_server
"""

#: DistributedDataParallel and RemoteModule in such graphs, by the number of ranks. Left out are
#: those that need TorchScript, sparse gradients or private attributes of a RemoteModule.
MODELS = {
    6: """
DdpUnderDistAutogradTest.test_backward_no_ddp DdpUnderDistAutogradTest.test_backward_ddp_outside
DdpUnderDistAutogradTest.test_backward_ddp_outside_uneven_inputs
DdpUnderDistAutogradTest.test_backward_ddp_inside
""",
    4: """
DdpComparisonTest.test_ddp_comparison DdpComparisonTest.test_ddp_comparison_uneven_inputs
DdpComparisonTest.test_ddp_dist_autograd_local_vs_remote
""",
    2: """
RemoteModuleTest.test_bad_module RemoteModuleTest.test_forward_with_kwargs
RemoteModuleTest.test_remote_parameters RemoteModuleTest.test_get_module_rref
RemoteModuleTest.test_train_eval RemoteModuleTest.test_unsupported_methods
RemoteModuleTest.test_send_remote_module_with_a_new_attribute_not_pickled_over_the_wire
""",
}

#: It asserts that the backward hangs.
HANGS_IN_TORCH = "test_backward_unused_send_function"

OPTIMIZER = """
test_dist_optim test_dist_optim_none_grads test_dist_optim_exception
test_dist_optim_exception_on_constructor
"""


def folder() -> Path:
    """The tests come with PyTorch, which is not imported."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        pytest.skip("PyTorch is not installed")
    return Path(found.submodule_search_locations[0]) / FOLDER


def run(directory: Path, *arguments: str, ranks: int = 4) -> Ran:
    return run_ranks(directory, SCRIPT, ranks, script_arguments=arguments)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    tests = [f"DistAutogradTest.{name}" for name in TOGETHER.split()]
    tests += [f"DistOptimizerTest.{name}" for name in OPTIMIZER.split()]
    return run(tmp_path_factory.mktemp("together"), str(folder()), *tests)


@pytest.fixture(scope="module")
def each(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    tests = [f"RpcTest.{name}" for name in CALLS.split()]
    return run(tmp_path_factory.mktemp("each"), "--each", str(folder()), *tests)


def check(ran: Ran, name: str, ranks: int = 4) -> None:
    said = [line for rank in range(ranks) for line in ran.lines[rank] if line.split()[0] == name]
    assert said == [f"{name} passed"] * (1 if name in IN_ONE_RANK else ranks), ran.errors


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", (TOGETHER + OPTIMIZER).split())
def test_torch(together: Ran, name: str) -> None:
    check(together, name)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS.split())
def test_torch_of_calls(each: Ran, name: str) -> None:
    check(each, name)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE.split())
def test_torch_where_processes_leave(tmp_path: Path, name: str) -> None:
    check(run(tmp_path, "--alone", str(folder()), f"DistAutogradTest.{name}"), name)


@pytest.mark.process
@pytest.mark.slow
def test_what_nobody_uses_keeps_nobody_waiting(tmp_path: Path) -> None:
    ran = run(tmp_path, "--alone", str(folder()), f"DistAutogradTest.{HANGS_IN_TORCH}")
    failed = [line for rank in range(4) for line in ran.lines[rank] if " failed: " in line]
    assert len(failed) >= 1
    assert all("self.assertTrue(t.is_alive())" in line for line in failed), failed


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "name"), [(ranks, name) for ranks, names in MODELS.items() for name in names.split()]
)
def test_torch_of_models(tmp_path: Path, ranks: int, name: str) -> None:
    check(run(tmp_path, "--group", str(folder()), name, ranks=ranks), name.partition(".")[2], ranks)
