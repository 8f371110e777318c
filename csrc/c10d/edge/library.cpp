// Collectives as operators of torch.library, for short calls and compiled graphs:
// torch.ops.fastcomm.all_reduce_(tensor, group_name) and its kin. Their fake implementations and
// their derivatives are in fastcomm/_distributed/operators.py.
//
// A call is one of c10d's, synchronous, without c10d's own layers: it has the same place in the
// group's order, the same errors, and is recorded alike.
#include "c10d/edge/library.h"

#include <torch/library.h>

#include <algorithm>
#include <string>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "c10d/edge/direct_call.h"
#include "c10d/life/without_gil.h"
#include "tensors/accelerator.h"

namespace fastcomm {

namespace {

/// The backend that this thread has found last: most threads use one group, and c10d's own search
/// takes 0.1 us.
struct Known {
  FastcommBackend* backend = nullptr;
  uint64_t changes = 0;
  c10::DeviceType device = c10::kCPU;
  std::string group_name;

  bool is(const std::string& name, c10::DeviceType type) const {
    return backend != nullptr && changes == FastcommBackend::changes() && device == type &&
           group_name == name;
  }
};

thread_local Known t_known;

}  // namespace

BackendFound backend_of(const std::string& group_name, c10::DeviceType device) {
  if (t_known.is(group_name, device)) return {t_known.backend, t_known.backend};
  const uint64_t changes = FastcommBackend::changes();  // before the search
  auto* const any = ::c10d::resolve_process_group(group_name)->getBackend(device).get();
  auto* const own = dynamic_cast<FastcommBackend*>(any);
  t_known = {own, changes, device, group_name};
  return {any, own};
}

namespace {

/// Carries a call out. Who calls an operator from Python has let go of the GIL; a model of
/// AOTInductor has not, and other threads, and Ctrl-C, would wait until the peers have come.
void carry_out(const DirectCall& call, const std::string& group_name, c10::DeviceType device) {
  const WithoutGil no_gil;
  const auto [any, own] = backend_of(group_name, device);
  const WorkPtr work = own != nullptr ? call.issue(*own, /*async=*/false) : call.issue_to(*any);
  if (work != nullptr) work->wait();
}

void carry_out(const DirectCall& call, const std::string& group_name) {
  carry_out(call, group_name, call.outputs[0].device().type());
}

void all_reduce_(const at::Tensor& tensor, const std::string& group_name, const std::string& op) {
  carry_out({OpKind::kAllReduce, {}, tensor, reduction_named(op)}, group_name);
}

void all_gather_into(const at::Tensor& output, const at::Tensor& input,
                     const std::string& group_name) {
  carry_out({OpKind::kAllGatherIntoTensor, input, output}, group_name);
}

void reduce_scatter_into(const at::Tensor& output, const at::Tensor& input,
                         const std::string& group_name, const std::string& op) {
  carry_out({OpKind::kReduceScatterTensor, input, output, reduction_named(op)}, group_name);
}

void broadcast_(const at::Tensor& tensor, int64_t root, const std::string& group_name) {
  carry_out({OpKind::kBroadcast, {}, tensor, {}, root}, group_name);
}

void all_to_all_into(const at::Tensor& output, const at::Tensor& input,
                     at::OptionalIntArrayRef output_splits, at::OptionalIntArrayRef input_splits,
                     const std::string& group_name) {
  DirectCall call{OpKind::kAllToAllSingle, input, output};
  call.output_splits = output_splits.value_or(at::IntArrayRef{});
  call.input_splits = input_splits.value_or(at::IntArrayRef{});
  carry_out(call, group_name);
}

/// The CPU if a group has a backend for it, else any device that it has one for.
c10::DeviceType device_of_barrier(const std::string& group_name) {
  if (t_known.is(group_name, c10::kCPU)) return c10::kCPU;
  const auto devices = ::c10d::resolve_process_group(group_name)->getDeviceTypes();
  const bool has_cpu = std::any_of(devices.begin(), devices.end(),
                                   [](const c10::Device& each) { return each.is_cpu(); });
  return has_cpu || devices.empty() ? c10::kCPU : devices.back().type();
}

void barrier(const std::string& group_name) {
  carry_out({OpKind::kBarrier}, group_name, device_of_barrier(group_name));
}

// The same with results of their own, for derivatives.

at::Tensor all_reduce(const at::Tensor& tensor, const std::string& group_name,
                      const std::string& op) {
  at::Tensor result = tensor.clone(at::MemoryFormat::Contiguous);
  all_reduce_(result, group_name, op);
  return result;
}

/// The inputs of all ranks, joined along their first dimension.
at::Tensor all_gather(const at::Tensor& tensor, const std::string& group_name) {
  const at::Tensor input = tensor.contiguous();
  auto shape = input.sizes().vec();
  TORCH_CHECK(!shape.empty(), "all_gather: the tensor has no dimension along which to join");
  shape[0] *= backend_of(group_name, input.device().type()).any->getSize();
  at::Tensor result = at::empty(shape, input.options());
  all_gather_into(result, input, group_name);
  return result;
}

/// This rank's part of the sum, cut along the first dimension.
at::Tensor reduce_scatter(const at::Tensor& tensor, const std::string& group_name,
                          const std::string& op) {
  const at::Tensor input = tensor.contiguous();
  auto shape = input.sizes().vec();
  const int64_t size = backend_of(group_name, input.device().type()).any->getSize();
  TORCH_CHECK(!shape.empty() && shape[0] % size == 0, "reduce_scatter: ", input.sizes(),
              " cannot be cut into ", size, " equal parts along its first dimension");
  shape[0] /= size;
  at::Tensor result = at::empty(shape, input.options());
  reduce_scatter_into(result, input, group_name, op);
  return result;
}

at::Tensor broadcast(const at::Tensor& tensor, int64_t root, const std::string& group_name) {
  at::Tensor result = tensor.clone(at::MemoryFormat::Contiguous);
  broadcast_(result, root, group_name);
  return result;
}

at::Tensor all_to_all(const at::Tensor& tensor, at::OptionalIntArrayRef output_splits,
                      at::OptionalIntArrayRef input_splits, const std::string& group_name) {
  const at::Tensor input = tensor.contiguous();
  auto shape = input.sizes().vec();
  if (output_splits && !shape.empty()) {
    shape[0] = 0;
    for (const int64_t rows : *output_splits) shape[0] += rows;
  }
  at::Tensor result = at::empty(shape, input.options());
  all_to_all_into(result, input, output_splits, input_splits, group_name);
  return result;
}

/// What a call with these tensors costs before it reaches this file (benchmarks).
void nothing_(const at::Tensor&, const std::string&, const std::string&) {}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fastcomm, library) {
  library.def("all_reduce_(Tensor(a!) tensor, str group_name, str op=\"sum\") -> ()");
  library.def("all_gather_into(Tensor(a!) output, Tensor input, str group_name) -> ()");
  library.def(
      "reduce_scatter_into(Tensor(a!) output, Tensor input, str group_name, str op=\"sum\") -> ()");
  library.def("broadcast_(Tensor(a!) tensor, int group_src, str group_name) -> ()");
  library.def(
      "all_to_all_into(Tensor(a!) output, Tensor input, int[]? output_splits, int[]? "
      "input_splits, str group_name) -> ()");
  library.def("barrier(str group_name) -> ()");
  library.def("all_reduce(Tensor tensor, str group_name, str op=\"sum\") -> Tensor");
  library.def("all_gather(Tensor tensor, str group_name) -> Tensor");
  library.def("reduce_scatter(Tensor tensor, str group_name, str op=\"sum\") -> Tensor");
  library.def("broadcast(Tensor tensor, int group_src, str group_name) -> Tensor");
  library.def(
      "all_to_all(Tensor tensor, int[]? output_splits, int[]? input_splits, str group_name) -> "
      "Tensor");
  library.def("_nothing_(Tensor(a!) tensor, str group_name, str op=\"sum\") -> ()");
}

#define FC_COLLECTIVES(library)                             \
  library.impl("all_reduce_", all_reduce_);                 \
  library.impl("all_gather_into", all_gather_into);         \
  library.impl("reduce_scatter_into", reduce_scatter_into); \
  library.impl("broadcast_", broadcast_);                   \
  library.impl("all_to_all_into", all_to_all_into);         \
  library.impl("all_reduce", all_reduce);                   \
  library.impl("all_gather", all_gather);                   \
  library.impl("reduce_scatter", reduce_scatter);           \
  library.impl("broadcast", broadcast);                     \
  library.impl("all_to_all", all_to_all)

TORCH_LIBRARY_IMPL(fastcomm, CPU, library) {
  FC_COLLECTIVES(library);
  library.impl("_nothing_", nothing_);
}

TORCH_LIBRARY_IMPL(fastcomm, FC_ACCELERATOR_KEY, library) { FC_COLLECTIVES(library); }

// It has no tensor whose device would choose.
TORCH_LIBRARY_IMPL(fastcomm, CompositeExplicitAutograd, library) {
  library.impl("barrier", barrier);
}

}  // namespace fastcomm
