// The CPU executor of a schedule: one thread, memcpy and the SIMD loops of reduce_cpu.h.
//
// publish() stores the flag and then looks whether a peer sleeps. Both with sequential consistency,
// for the reason argued in transport/doorbell.h.
#pragma once

#include <algorithm>
#include <cstring>

#include "core/hd.h"
#include "kernels/gradient_cpu.h"
#include "kernels/reduce_cpu.h"
#include "kernels/stage_copy.h"
#include "transport/doorbell.h"
#include "transport/peer_view.h"

namespace fastcomm {

class CpuExecutor {
 public:
  /// `doorbells` holds one pointer a rank, or is nullptr where nobody ever sleeps.
  CpuExecutor(const PeerView& peers, Doorbell* const* doorbells, ReduceFunction reduce, int divisor,
              double factor = 1)
      : peers_(peers), doorbells_(doorbells), reduce_(reduce), divisor_(divisor), factor_(factor) {}

  void copy_span(void* dst, const void* src, size_t bytes) const {
    if (dst != src && bytes != 0) std::memcpy(dst, src, bytes);
  }

  void stage_span(void* dst, const void* src, size_t bytes, StagedTo where = kToSlot) {
    if (dst != src && bytes != 0) stage_.copy(dst, src, bytes, where);
  }

  /// `second_dst` is where peers read it. Where its lines are far away (kernels/stage_copy.h), it is written piece by
  /// piece out of `dst`, which then is in the cache.
  template <class Sources>
  void reduce_span(void* dst, void* second_dst, const Sources& sources, size_t count,
                   uint32_t element_size, StagedTo where = kToSlot) {
    const void* pointers[kMaxRanks];
    const auto reduce = [&](size_t first, size_t elements, bool both) {
      const size_t at = first * element_size;
      for (int peer = 0; peer < peers_.size; ++peer) pointers[peer] = sources(peer) + at;
      void* const second = both ? static_cast<char*>(second_dst) + at : nullptr;
      reduce_(ReduceSpan{static_cast<char*>(dst) + at, second, pointers, peers_.size, elements,
                         divisor_, 1, factor_});
    };
    size_t done = 0;
    if (second_dst != nullptr && count * element_size >= 2 * kPieceBytes) {
      const size_t piece = kPieceBytes / element_size;
      do {
        const size_t elements = std::min(piece, count - done);
        const size_t at = done * element_size;
        reduce(done, elements, /*both=*/false);
        char* const to = static_cast<char*>(second_dst) + at;
        const char* const from = static_cast<char*>(dst) + at;
        if (done == 0) {
          stage_.copy(to, from, elements * element_size, where);
        } else {
          stage_.copy_on(to, from, elements * element_size);
        }
        done += elements;
      } while (stage_.far() && done < count);
    }
    if (done < count) reduce(done, count - done, second_dst != nullptr);
  }

  // For lists of gradients, whose types change from tensor to tensor.
  void convert_span(void* to, DType to_type, const void* from, DType from_type,
                    size_t count) const {
    convert_function(to_type, from_type)(to, from, count);
  }
  void convert_with_residual(void* to, DType to_type, const void* from, float* residual,
                             size_t count) const {
    feedback_function(to_type)(to, static_cast<const float*>(from), residual, count);
  }

  /// The functions for a gradient: looked up once for its many spans.
  struct Typed {
    ReduceFunction reduce;
    ConvertFunction widen;  // from the wire's type
    NormFunction norm;
  };
  Typed typed(DType type, DType wire, NormKind kind) const {
    return {reduce_function(wire, ReduceOp::kSum), convert_function(type, wire),
            norm_function(type, kind)};
  }

  template <class Sources>
  void reduce_typed_span(ReduceFunction reduce, void* dst, void* second_dst, const Sources& sources,
                         size_t count, int divisor, double scale) const {
    const void* pointers[kMaxRanks];
    for (int peer = 0; peer < peers_.size; ++peer) pointers[peer] = sources(peer);
    reduce(ReduceSpan{dst, second_dst, pointers, peers_.size, count, divisor, scale});
  }

  void publish(uint32_t steps) const {
    publish_flag(peers_.flag(peers_.rank, 0), steps);
    if (doorbells_ == nullptr) return;
    for (int peer = 0; peer < peers_.size; ++peer) {
      if (peer != peers_.rank) ring_if_asleep(*doorbells_[peer]);
    }
  }

  /// Looks once, and does not wait.
  bool arrived(const WaitFor& wait, uint32_t target) const {
    for (int peer = wait.first; peer < wait.first + wait.count; ++peer) {
      if (peer != peers_.rank && !reached(load_flag(peers_.flag(peer, 0)), target)) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kPieceBytes = 16 * 1024;

  const PeerView& peers_;
  StageCopy stage_;
  Doorbell* const* doorbells_;
  ReduceFunction reduce_;
  int divisor_;
  double factor_;
};

}  // namespace fastcomm
