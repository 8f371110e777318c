// Executor of the steps of a schedule (coll/schedule.h): one thread, memcpy and the SIMD loops of
// reduce_cpu.h.
//
// publish() stores the flag and then checks for sleeping peers. Both are sequentially consistent,
// for the reason in transport/doorbell.h.
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
  /// `doorbells` holds one pointer per rank, or is nullptr if nobody ever sleeps.
  CpuExecutor(const PeerView& peers, Doorbell* const* doorbells, ReduceFunction reduce, int divisor,
              double factor = 1)
      : peers_(peers), doorbells_(doorbells), reduce_(reduce), divisor_(divisor), factor_(factor) {}

  /// From now on copies to tensors bypass the caches, which could not hold them anyway: fetching
  /// their lines first is a third of the traffic, and takes the room of data that is still to be
  /// read.
  void copies_past_caches() { past_caches_ = true; }

  void copy_span(void* dst, const void* src, size_t bytes) const {
    if (dst == src || bytes == 0) return;
    if (past_caches_) {
      stream_copy(static_cast<char*>(dst), static_cast<const char*>(src), bytes);
    } else {
      std::memcpy(dst, src, bytes);
    }
  }

  void stage_span(void* dst, const void* src, size_t bytes, StagedTo where = kToSlot) {
    if (dst != src && bytes != 0) stage_.copy(dst, src, bytes, where);
  }

  /// `second_dst` is memory that peers read. If its lines are far away (kernels/stage_copy.h), it
  /// is written piece by piece out of `dst`, which then is in the cache.
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
    if (second_dst == nullptr) return reduce(0, count, /*both=*/false);
    in_pieces(
        second_dst, count, element_size, where,
        [&](size_t first, size_t elements) {
          reduce(first, elements, /*both=*/false);
          return static_cast<const char*>(dst) + first * element_size;
        },
        [&](size_t first, size_t elements) { reduce(first, elements, /*both=*/true); });
  }

  // For lists of gradients, whose types change from tensor to tensor.
  void convert_span(void* to, DType to_type, const void* from, DType from_type,
                    size_t count) const {
    if (to_type == from_type) return copy_span(to, from, count * dtype_size(to_type));
    convert_function(to_type, from_type)(to, from, count);
  }

  /// To a slot, for peers or for this rank alone; with a residual, also stores the rounding error.
  void convert_to_slot(void* slot, DType to_type, const void* from, DType from_type,
                       float* residual, size_t count, bool for_peers, StagedTo where = kToSlot) {
    const size_t element = dtype_size(to_type), source = dtype_size(from_type);
    if (to_type == from_type) return stage_span(slot, from, count * element);
    const auto* begin = static_cast<const char*>(from);
    const auto convert_by = [&](const auto& make) {
      if (for_peers) {
        stage_made(slot, count, element, where, make);
      } else {
        make(slot, size_t{0}, count);
      }
    };
    if (residual != nullptr) {
      const FeedbackFunction round = feedback_function(to_type);
      convert_by([&](void* place, size_t first, size_t elements) {
        const auto* values = reinterpret_cast<const float*>(begin + first * source);
        round(place, values, residual + first, elements);
      });
    } else {
      const ConvertFunction convert = convert_function(to_type, from_type);
      convert_by([&](void* place, size_t first, size_t elements) {
        convert(place, begin + first * source, elements);
      });
    }
  }

  /// The functions for a gradient, looked up once for its many spans.
  struct Typed {
    ReduceFunction reduce;
    ConvertFunction widen;  // from the wire's type
    NormFunction norm;
  };
  Typed typed(DType type, DType wire, NormKind kind) const {
    return {reduce_function(wire, ReduceOp::kSum), convert_function(type, wire),
            norm_function(type, kind)};
  }

  /// A span that fits the first-level cache. `second_bytes` of it go to `second_dst`.
  template <class Sources>
  void reduce_typed_span(ReduceFunction reduce, void* dst, void* second_dst, size_t second_bytes,
                         const Sources& sources, size_t count, int divisor, double scale) const {
    const void* pointers[kMaxRanks];
    for (int peer = 0; peer < peers_.size; ++peer) pointers[peer] = sources(peer);
    const bool copied = second_dst != nullptr && stage_.far();
    reduce(ReduceSpan{dst, copied ? nullptr : second_dst, pointers, peers_.size, count, divisor,
                      scale});
    if (copied) stage_.copy_on(second_dst, dst, second_bytes);
  }

  void publish(uint32_t steps) const {
    publish_flag(peers_.flags[peers_.rank], steps);
    if (doorbells_ == nullptr) return;
    for (int peer = 0; peer < peers_.size; ++peer) {
      if (peer != peers_.rank) ring_if_asleep(*doorbells_[peer]);
    }
  }

  /// Looks once, without waiting.
  bool arrived(const WaitFor& wait, uint32_t target) const {
    for (int peer = wait.first; peer < wait.first + wait.count; ++peer) {
      if (peer != peers_.rank && !reached(load_flag(peers_.flags[peer]), target)) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kPieceBytes = 16 * 1024;

  /// Writes `to`, which peers read: the first piece of a long span out of near(first, elements),
  /// which makes it in the cache and returns its place. While lines there are far away
  /// (kernels/stage_copy.h) all pieces go that way, else the rest by rest(first, elements).
  template <class Near, class Rest>
  void in_pieces(void* to, size_t count, size_t element_size, StagedTo where, const Near& near,
                 const Rest& rest) {
    size_t done = 0;
    if (count * element_size >= 2 * kPieceBytes) {
      const size_t piece = kPieceBytes / element_size;
      do {
        const size_t elements = std::min(piece, count - done), bytes = elements * element_size;
        const void* const made = near(done, elements);
        char* const place = static_cast<char*>(to) + done * element_size;
        if (done == 0) {
          stage_.copy(place, made, bytes, where);
        } else {
          stage_.copy_on(place, made, bytes);
        }
        done += elements;
      } while (stage_.far() && done < count);
    }
    if (done < count) rest(done, count - done);
  }

  /// Writes the results of make(place, first, elements), which otherwise do not stay in the cache.
  template <class Make>
  void stage_made(void* slot, size_t count, size_t element_size, StagedTo where, const Make& make) {
    alignas(64) char buffer[kPieceBytes];
    in_pieces(
        slot, count, element_size, where,
        [&](size_t first, size_t elements) {
          make(buffer, first, elements);
          return buffer;
        },
        [&](size_t first, size_t elements) {
          make(static_cast<char*>(slot) + first * element_size, first, elements);
        });
  }

  const PeerView& peers_;
  StageCopy stage_;
  Doorbell* const* doorbells_;
  ReduceFunction reduce_;
  int divisor_;
  double factor_;
  bool past_caches_ = false;
};

}  // namespace fastcomm
