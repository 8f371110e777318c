"""A selection of torch's tests that takes seconds: some of each kind of operation, and of DDP."""

from __future__ import annotations

SHORT = [
    # Collectives; each looks at its events for the profiler, too.
    "test_all_reduce_sum",
    "test_all_reduce_sum_async",
    "test_all_reduce_sum_complex",
    "test_all_reduce_complex_unsupported_ops",
    "test_all_reduce_full_group_max",
    "test_all_reduce_product",
    "test_all_reduce_coalesced_sum",
    "test_sparse_all_reduce_sum",
    "test_broadcast",
    "test_reduce_sum_twice",
    "test_reduce_full_group_min",
    "test_all_gather_complex",
    "test_all_gather_coalesced_complex",
    "test_all_gather_coalesced_with_empty",
    "test_gather_checks",
    "test_scatter_complex",
    "test_barrier_timeout_full_group",
    "test_monitored_barrier_gloo_subgroup",
    "test_monitored_barrier_gloo_rank_0_timeout",
    # Objects, and forms of groups.
    "test_all_gather_object_subgroup",
    "test_scatter_object_list",
    "test_get_backend",
    "test_destroy_full_group",
    # From rank to rank.
    "test_batch_isend_irecv_gloo_tags",
    "test_isend_torch_profiler",
    "test_irecv",
    "test_send_recv_any_source_autograd_profiler",
    "test_send_recv_with_tag_torch_profiler",
    # DistributedDataParallel, and what attaches to futures.
    "test_get_future",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_ddp_create_graph",
    "test_ddp_grad_div_uneven_inputs",
]
