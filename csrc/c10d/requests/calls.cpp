#include "c10d/requests/calls.h"

#include "c10d/requests/forms.h"

namespace fastcomm {
namespace {

void add_calls(const Site& site, const Request& request, Calls& calls) {
  switch (request.kind) {
    case OpKind::kAllReduce:
      return add_all_reduce(site, request, calls);
    case OpKind::kBroadcast:
      return add_broadcast(site, request, calls);
    case OpKind::kBarrier:
      return add_barrier(site, request, calls);
    case OpKind::kReduce:
      return add_reduce(site, request, calls);
    case OpKind::kAllGather:
      return add_all_gather(site, request, calls);
    case OpKind::kAllGatherIntoTensor:
      return add_all_gather_into_tensor(site, request, calls);
    case OpKind::kReduceScatter:
      return add_reduce_scatter(site, request, calls);
    case OpKind::kReduceScatterTensor:
      return add_reduce_scatter_tensor(site, request, calls);
    case OpKind::kGather:
      return add_gather(site, request, calls);
    case OpKind::kScatter:
      return add_scatter(site, request, calls);
    case OpKind::kAllToAll:
      return add_all_to_all(site, request, calls);
    case OpKind::kAllToAllSingle:
      return add_all_to_all_single(site, request, calls);
    case OpKind::kAllReduceCoalesced:
      return add_all_reduce_coalesced(site, request, calls);
    case OpKind::kAllGatherCoalesced:
      return add_all_gather_coalesced(site, request, calls);
    case OpKind::kAllGatherIntoTensorCoalesced:
      return add_all_gather_into_tensor_coalesced(site, request, calls);
    case OpKind::kReduceScatterTensorCoalesced:
      return add_reduce_scatter_tensor_coalesced(site, request, calls);
    case OpKind::kAllReduceSparse:
      return add_all_reduce_sparse(site, request, calls);
    case OpKind::kFusedAllReduce:
    case OpKind::kFusedReduceScatter:
      return add_fused_reduce(site, request, calls);
    case OpKind::kGatherShards:
      return add_gather_shards(site, request, calls);
    default:
      throw Error(ErrorCode::kUnsupported,
                  concat(request.name(), ": no engine puts this together"));
  }
}

}  // namespace

Calls calls_of(const Site& site, const Request& request) {
  Calls calls;
  add_calls(site, request, calls);
  return calls;
}

}  // namespace fastcomm
