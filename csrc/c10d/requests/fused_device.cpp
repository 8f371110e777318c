// Lists of gradients on devices: an all_reduce for each type that travels, and then the results of
// the list.
//
// Gradients that lie end to end, as in DDP's buckets, are one message, used in place if it lies in
// memory that all ranks have mapped. Others are gathered and scattered instead of staged and
// fetched, and rounded and widened on the way (engines/cuda/pieces.h). Every rank checks its own
// results: they are equal, and so is everything that follows from them. After a failure they are
// NaN, so that it is found.
#include "c10d/requests/forms.h"
#if defined(FC_DEVICES)
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <limits>

#include "tensors/dtype.h"
#include "tensors/gradients_device.h"

namespace fastcomm {
namespace {

/// This rank's terms, if not the gradients themselves: rounded together with their previous
/// rounding error; the residual becomes the new one (as convert_with_residual in
/// kernels/gradient_cpu.h).
Tensors rounded_with(const GradientTensors& gradients, const Tensors& residuals,
                     at::ScalarType wire) {
  const at::NoGradGuard no_grad;
  Tensors made(gradients.dense().size());
  for (size_t i = 0; i < residuals.size(); ++i) {
    if (gradients.gradients()[i].wire == gradients.gradients()[i].dtype) continue;
    const at::Tensor& gradient = gradients.dense()[i];
    const at::Tensor residual = as_pairs(residuals[i]);
    const at::Tensor value = gradient + residual;
    made[i] = at::empty_strided(gradient.sizes(), gradient.strides(), value.options().dtype(wire))
                  .copy_(value);
    const at::Tensor left = value - made[i];
    residual.copy_(at::where(at::isfinite(left), left, at::zeros_like(left)));
  }
  return made;
}

/// Sets the message of the gradients that travel as `wire`.
void set_message(Call& call, const std::vector<Gradient>& gradients, const Tensors& rounded,
                 DType wire) {
  MessagePieces pieces;
  bool whole = true;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Gradient& each = gradients[i];
    if (each.wire != wire || each.count == 0) continue;
    const bool given = !rounded.empty() && rounded[i].defined();
    const void* const from = given ? rounded[i].const_data_ptr() : each.data;
    pieces.push_back({from, given ? wire : each.dtype, each.data, each.dtype, each.count});
    const auto* const begin = static_cast<const char*>(pieces[0].to);
    whole = whole && from == each.data && each.dtype == wire &&
            each.data == begin + call.count * dtype_size(wire);
    call.count += each.count;
  }
  call.dtype = wire;
  if (pieces.empty()) return;
  if (whole) {
    call.input = call.output = pieces[0].to;
  } else {
    call.pieces = std::make_shared<const MessagePieces>(std::move(pieces));
  }
}

/// The results of a list that was not reduced, since the group had failed.
void set_failed(const TensorList& results) {
  const at::NoGradGuard no_grad;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  results[0].fill_(kNan);
  results[1].fill_(1);
  results[2].fill_(kNan);
}

/// Every rank's shards, at their places here, in bytes: types may differ.
ShardPieces shards_of(const std::vector<Gradient>& tensors, const std::vector<ShardOffsets>& shards,
                      int size) {
  ShardPieces all(size);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (shards[i].empty()) continue;
    const uint64_t element = dtype_size(tensors[i].dtype);
    for (int rank = 0; rank < size; ++rank) {
      const uint64_t count = shards[i][rank + 1] - shards[i][rank];
      if (count == 0) continue;
      char* const there = tensors[i].data + shards[i][rank] * element;
      all[rank].push_back({there, DType::kUInt8, there, DType::kUInt8, count * element});
    }
  }
  return all;
}

uint64_t longest_of(const ShardPieces& shards) {
  uint64_t longest = 0;
  for (const MessagePieces& pieces : shards) {
    uint64_t bytes = 0;
    for (const MessagePiece& piece : pieces) bytes += piece.count;
    longest = std::max(longest, bytes);
  }
  return longest;
}

}  // namespace

void add_fused_reduce_there(const Site& site, const Request& request, Calls& calls) {
  const GradientOptions& options = *request.gradients;
  check_offsets(options.shards, site.size);
  const Tensors gradients = request.outputs.vec();
  const at::Device device = gradients[0].device();
  const c10::DeviceGuard guard(device);
  const auto held = std::make_shared<GradientTensors>(gradients, options, device);
  Tensors rounded;  // residuals stay unchanged if nothing is sent
  if (options.wire && site.sends) rounded = rounded_with(*held, options.residuals, *options.wire);
  for (const Gradient& each : held->gradients()) {
    const auto same = [&](const Prepared& made) { return made.call.dtype == each.wire; };
    if (std::any_of(calls.begin(), calls.end(), same)) continue;
    Prepared& made = calls.emplace_back(request.kind, site.home);
    set_message(made.call, held->gradients(), rounded, each.wire);
    made.call.op = options.spec.average ? ReduceOp::kAvg : ReduceOp::kSum;
    made.call.scale = options.spec.unscale;
    made.call.signature = held->signature();
    made.held.add_steps().before_write_back = [held, rounded] {};  // keeps them alive
  }
  *request.results = make_gradient_results(gradients, device);
  // Before anything is enqueued: there may be no memory.
  const at::Tensor scratch = gradient_scratch(held->gradients(), device.index());
  Held& last = calls.back().held;
  last.add_steps().after_write_back = [held, scratch, norm = options.spec.norm,
                                       index = device.index(), results = *request.results] {
    look_at_gradients(held->gradients(), norm, index, scratch, results);
    held->write_back();
  };
  last.add_steps().instead = [results = *request.results] { set_failed(results); };
}

void add_gather_shards_there(const Site& site, const Request& request, Calls& calls) {
  const std::vector<ShardOffsets>& shards = request.gradients->shards;
  check_offsets(shards, site.size);
  const Tensors tensors = request.outputs.vec();
  const auto held =
      std::make_shared<GradientTensors>(tensors, *request.gradients, tensors[0].device());
  Prepared& made = calls.emplace_back(request.kind, site.home);
  ShardPieces pieces = shards_of(held->gradients(), shards, site.size);
  made.call.dtype = DType::kUInt8;
  made.call.count = longest_of(pieces);
  made.call.shards = std::make_shared<const ShardPieces>(std::move(pieces));
  made.call.signature = held->signature();
  made.held.add_steps().before_write_back = [held, tensors] {
    for (const at::Tensor& tensor : tensors) tensor.unsafeGetTensorImpl()->bump_version();
  };
}

}  // namespace fastcomm
#endif
