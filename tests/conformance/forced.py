"""Tests that torch skips on Gloo, or without devices, though they need neither; here they run.

They run with ``--backend gloo``, too: what fails there need not pass on fastcomm.
"""

from __future__ import annotations

from typing import Any

from conformance.on_cpu import open_gates

# torch says "Only MPI supports ..." of what Gloo supports by now.
OF_MPI = [
    *("test_all_to_all", "test_all_to_all_complex", "test_all_to_all_full_group"),
    *("test_all_to_all_group", "test_all_to_all_single_equal_split"),
    "test_all_to_all_single_equal_split_complex",
    "test_all_to_all_single_equal_split_full_group",
    "test_all_to_all_single_equal_split_group",
    "test_all_to_all_single_unequal_split",
    "test_all_to_all_single_unequal_split_complex",
    "test_all_to_all_single_unequal_split_full_group",
    "test_all_to_all_single_unequal_split_group",
]
# Skipped for trouble on torch's own machines.
OF_TROUBLE = ["test_broadcast_object_list"]

# Tests of devices that need nothing but a place for tensors.
ON_CPU = [
    "test_1_level_hierarchical_model_averager_equivalent_to_periodic_model_averager",
    "test_3_level_hierarchical_model_averager",
    "test_DistributedSampler_padding",
    "test_all_gather_into_cat_tensor_cuda",
    "test_all_gather_into_stack_tensor_cuda",
    "test_average_parameters",
    "test_batch_isend_irecv_op_err",
    "test_batch_isend_irecv_op_list_err",
    "test_batch_isend_irecv_ring_exchange_nccl",
    "test_coalescing_manager",
    "test_coalescing_manager_async",
    "test_compute_bucket_assignment_by_size_sparse_error_with_logger",
    "test_compute_bucket_assignment_by_size_sparse_error_without_logger",
    "test_ddp_broadcast_buffer",
    "test_ddp_broadcast_buffer_via_hook",
    "test_ddp_broadcast_buffers_deprecation_warning",
    "test_ddp_bucket_cap_mb_list",
    "test_ddp_buffer_hook_allreduce",
    "test_ddp_buffer_hook_allreduce_return_future",
    "test_ddp_build_debug_param_to_name_mapping",
    "test_ddp_build_debug_param_to_name_mapping_requires_grad",
    "test_ddp_comm_hook_logging",
    "test_ddp_compile_static_graph",
    "test_ddp_control_flow_different_across_ranks",
    "test_ddp_control_flow_same_across_ranks",
    "test_ddp_device_mesh_initialization",
    "test_ddp_forward_backward_hook",
    "test_ddp_grad_div_uneven_inputs",
    "test_ddp_hook_parity_allreduce",
    "test_ddp_hook_parity_allreduce_process_group",
    "test_ddp_hook_parity_post_localSGD",
    "test_ddp_hook_parity_powerSGD",
    "test_ddp_ignore_params_arg",
    "test_ddp_init_sync_buffers_with_forward_sync_buffers_false",
    "test_ddp_join_model_equivalence",
    "test_ddp_join_respects_forward_sync_buffers_false",
    "test_ddp_model_diff_num_params_across_ranks",
    "test_ddp_model_diff_shape_across_ranks",
    "test_ddp_multiple_nested_unused_params_err_ignore_params",
    "test_ddp_multiple_nested_unused_params_error",
    "test_ddp_namedtuple",
    "test_ddp_native_mixed_precision_ignored_params",
    "test_ddp_new_tensor_in_fwd",
    "test_ddp_new_tensor_in_fwd_static_graph",
    "test_ddp_profiling_torch_profiler",
    "test_ddp_python_error_logged",
    "test_ddp_remove_autograd_hooks",
    "test_ddp_returns_tensor_with_no_grad",
    "test_ddp_shared_grad_acc_unused_params",
    "test_ddp_sink_noclone",
    "test_ddp_static_graph_nested_types",
    "test_ddp_sync_module_states",
    "test_ddp_uneven_input_exception",
    "test_ddp_uneven_input_join_disable",
    "test_ddp_unused_params_rebuild_buckets_exception",
    "test_ddp_zero_output_features",
    "test_detect_ddp_is_actually_static",
    "test_different_graph_across_ranks",
    "test_get_data_parallel_params",
    "test_invalid_static_graph",
    "test_nccl_backend_bool_allgather",
    "test_nccl_backend_bool_allreduce",
    "test_nccl_backend_bool_broadcast",
    "test_nccl_backend_bool_reduce",
    "test_new_subgroups",
    "test_new_subgroups_by_enumeration",
    "test_new_subgroups_by_enumeration_input_rank_exceeds_world_size",
    "test_new_subgroups_by_enumeration_negative_input_rank",
    "test_new_subgroups_group_size_exceeds_world_size",
    "test_new_subgroups_overlap_not_allowed",
    "test_new_subgroups_world_size_not_divisible_by_group_size",
    "test_output_unused_in_loss_dict_module",
    "test_output_unused_in_loss_tuple_module",
    "test_periodic_model_averager",
    "test_periodic_model_averager_param_group",
    "test_post_localSGD_optimizer_parity",
    "test_post_localSGD_optimizer_parity_grad_is_view",
    "test_post_localSGD_optimizer_parity_with_hierarchical_sgd",
    "test_post_localSGD_optimizer_parity_with_hierarchical_sgd_grad_is_view",
    "test_post_localSGD_optimizer_step_reload",
    "test_reduce_scatter_tensor_cuda",
    "test_reduce_sum_cuda_twice",
    "test_skip_all_reduce_unused_parameters",
    "test_stateless_api_with_ddp",
    "test_static_graph_multi_forward",
    "test_undefined_grad_parity_unused_parameters",
    "test_verify_model_across_rank_with_logger",
    "test_verify_model_across_rank_without_logger",
]

FORCED = [*OF_MPI, *OF_TROUBLE, *ON_CPU]


def layers(method: Any) -> list[Any]:
    """Return the method and what its decorators have wrapped, from the outside in."""
    found = [method]
    while (inner := getattr(found[-1], "__wrapped__", None)) is not None:
        found.append(inner)
    return found


def without_skip(method: Any) -> Any:
    """Return what runs: the function behind unittest's skip, or the same without torch's mark."""
    for layer in layers(method):
        if layer.__code__.co_name == "skip_wrapper":  # unittest's
            return layer.__wrapped__
    method.__unittest_skip__ = False
    return method


def unskip(case: Any) -> None:
    for name in FORCED:
        if (method := getattr(case, name, None)) is None:
            continue
        reasons = [getattr(layer, "__unittest_skip_why__", "") for layer in layers(method)]
        if not any("world size" in reason for reason in reasons):
            setattr(case, name, without_skip(open_gates(method) if name in ON_CPU else method))
