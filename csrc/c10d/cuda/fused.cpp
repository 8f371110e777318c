// Lists of gradients on devices: an all_reduce for each type that travels, and then the results of the list.
//
// Gradients that lie end to end, as in DDP's buckets, are one message, used in place where it lies in memory
// that all ranks have mapped. Others are gathered and scattered where a message is staged and fetched, and
// rounded and widened on the way (engines/cuda/pieces.h). Every rank checks its own results: they are
// equal, and so is what follows from them. After a failure they are NaN, so that it is found.
#include "c10d/cuda/cuda_engine.h"
#if defined(FC_DEVICES)
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <limits>

#include "c10d/exception.h"
#include "tensors/dtype.h"
#include "tensors/gradients_device.h"

namespace fastcomm {
namespace {

/// What this rank gives of each gradient, unless it is the gradient itself: rounded with what was left before;
/// the residual becomes what is left now (as convert_with_residual in kernels/gradient_cpu.h).
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

/// Sets what is reduced, of the gradients that travel as `wire`.
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

/// What each rank owns, as it lies here, in bytes: types may differ.
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

std::optional<Engine::Fused> CudaEngine::fused_reduce(const Tensors& gradients,
                                                      const GradientOptions& options,
                                                      std::optional<Milliseconds> timeout,
                                                      bool async) {
  // Lists on several devices, or of sparse tensors. All ranks decide alike, since their lists are to be alike.
  if (gradients.empty() || !moves(gradients)) return std::nullopt;
  return translating([&]() -> std::optional<Fused> {
    check_offsets(options.shards, getSize());
    const int device = group_->device();
    const c10::DeviceGuard guard(accelerator_device(device));
    const auto held =
        std::make_shared<GradientTensors>(gradients, options, accelerator_device(device));
    const bool failed = group_->failure() != nullptr;
    Tensors rounded;  // residuals stay as they are where nothing is sent
    if (options.wire && !failed) rounded = rounded_with(*held, options.residuals, *options.wire);
    const bool scatter = !options.shards.empty();
    std::vector<Prepared> calls;
    for (const Gradient& each : held->gradients()) {
      const auto same = [&](const Prepared& made) { return made.call.dtype == each.wire; };
      if (std::any_of(calls.begin(), calls.end(), same)) continue;
      Prepared& made =
          calls.emplace_back(scatter ? OpKind::kFusedReduceScatter : OpKind::kFusedAllReduce,
                             ::c10d::OpType::ALLREDUCE, Place::kWhereItIs);
      set_message(made.call, held->gradients(), rounded, each.wire);
      made.call.op = options.spec.average ? ReduceOp::kAvg : ReduceOp::kSum;
      made.call.scale = options.spec.unscale;
      made.call.signature = held->signature();
      made.payload.shown = gradients;
      made.payload.settle = [held, rounded] {};  // keeps them alive
    }
    Fused fused{nullptr, make_gradient_results(gradients, accelerator_device(device))};
    // Before anything is enqueued: there may be no memory.
    const at::Tensor scratch = gradient_scratch(held->gradients(), device);
    const auto looked = std::make_shared<bool>(false);
    calls.back().payload.behind = [=, norm = options.spec.norm, results = fused.results] {
      look_at_gradients(held->gradients(), norm, device, scratch, results);
      held->write_back();
      *looked = true;
    };
    fused.work = submit_each(std::move(calls), fused.results,
                             timeout.value_or(::c10d::kUnsetTimeout), async);
    if (!*looked) set_failed(fused.results);
    return fused;
  });
}

std::optional<Engine::Fused> CudaEngine::gather_shards(const Tensors& tensors,
                                                       const std::vector<ShardOffsets>& shards,
                                                       std::optional<Milliseconds> timeout,
                                                       bool async) {
  if (tensors.empty() || !moves(tensors)) return std::nullopt;
  return translating([&]() -> std::optional<Fused> {
    check_offsets(shards, getSize());
    const at::Device device = accelerator_device(group_->device());
    const GradientOptions options{{false, 1, NormKind::kNone}, {}, shards, {}};
    const auto held = std::make_shared<GradientTensors>(tensors, options, device);
    Prepared made(OpKind::kGatherShards, ::c10d::OpType::ALLGATHER, Place::kWhereItIs);
    ShardPieces pieces = shards_of(held->gradients(), shards, getSize());
    made.call.dtype = DType::kUInt8;
    made.call.count = longest_of(pieces);
    made.call.shards = std::make_shared<const ShardPieces>(std::move(pieces));
    made.call.signature = held->signature();
    made.payload.shown = tensors;
    made.payload.settle = [held, tensors] {
      for (const at::Tensor& tensor : tensors) tensor.unsafeGetTensorImpl()->bump_version();
    };
    Fused fused;
    fused.work = submit(std::move(made), timeout.value_or(::c10d::kUnsetTimeout), async);
    return fused;
  });
}

}  // namespace fastcomm
#endif
