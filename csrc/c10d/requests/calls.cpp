#include "c10d/requests/calls.h"

#include <array>

#include "c10d/requests/forms.h"

namespace fastcomm {
namespace {

using Form = void (*)(const Site&, const Request&, Calls&);

constexpr std::pair<OpKind, Form> kForms[] = {
    {OpKind::kAllReduce, add_all_reduce},
    {OpKind::kAllReduceAddRmsNorm, add_all_reduce_add_rms_norm},
    {OpKind::kBroadcast, add_broadcast},
    {OpKind::kBarrier, add_barrier},
    {OpKind::kReduce, add_reduce},
    {OpKind::kAllGather, add_all_gather},
    {OpKind::kAllGatherIntoTensor, add_all_gather_into_tensor},
    {OpKind::kReduceScatter, add_reduce_scatter},
    {OpKind::kReduceScatterTensor, add_reduce_scatter_tensor},
    {OpKind::kGather, add_gather},
    {OpKind::kScatter, add_scatter},
    {OpKind::kAllToAll, add_all_to_all},
    {OpKind::kAllToAllSingle, add_all_to_all_single},
    {OpKind::kAllReduceCoalesced, add_all_reduce_coalesced},
    {OpKind::kAllGatherCoalesced, add_all_gather_coalesced},
    {OpKind::kAllGatherIntoTensorCoalesced, add_all_gather_into_tensor_coalesced},
    {OpKind::kReduceScatterTensorCoalesced, add_reduce_scatter_tensor_coalesced},
    {OpKind::kAllReduceSparse, add_all_reduce_sparse},
    {OpKind::kFusedAllReduce, add_fused_reduce},
    {OpKind::kFusedReduceScatter, add_fused_reduce},
    {OpKind::kGatherShards, add_gather_shards},
};

constexpr auto kFormOf = [] {
  std::array<Form, kNumOpKinds> form_of{};
  for (const auto& [kind, form] : kForms) form_of[static_cast<size_t>(kind)] = form;
  return form_of;
}();

}  // namespace

Calls calls_of(const Site& site, const Request& request) {
  const Form form = kFormOf[static_cast<size_t>(request.kind)];
  if (form == nullptr) {
    throw Error(ErrorCode::kUnsupported, concat(request.name(), ": no engine puts this together"));
  }
  Calls calls;
  form(site, request, calls);
  return calls;
}

}  // namespace fastcomm
