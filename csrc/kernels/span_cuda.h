// The CUDA executor of a schedule: one block, on one channel.
//
// A span is worked on by all threads of the block, strided by its width, in packs of 16 bytes. The
// functions that move data have no barrier of their own; a schedule's steps do not depend on each
// other within a step, and publish and arrived are barriers.
//
// Memory ordering: every thread writes; __syncthreads; thread 0 stores the flag with release, which
// is cumulative over the barrier; a peer's thread loads it with acquire; __syncthreads; every
// thread of the peer reads. Flags are of system scope (core/hd.h). Data is read by plain loads,
// never through the read-only path: a destination may be a source, and peers write between two
// steps.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/control.h"
#include "core/hd.h"
#include "core/numeric.h"
#include "core/touches.h"
#include "kernels/bounded_wait.h"
#include "kernels/channel.h"
#include "kernels/cuda/copy_block.h"
#include "kernels/cuda/reduce_pack.h"
#include "kernels/cuda_api.h"
#include "transport/peer_view.h"

namespace fastcomm {

/// T: storage type (core/numeric.h). N: ranks, or 0 where their number is known at run time only, up
/// to kMaxTreeSources.
template <class T, int N>
class CudaExecutor {
 public:
  FC_DEVICE CudaExecutor(const PeerView& peers, const WaitBounds& bounds, int channel,
                         const ChannelState& state, WaitRecord* record, bool average)
      : peers_(peers),
        bounds_(bounds),
        record_(record),
        channel_(channel),
        base_(state.base),
        operation_(state.operations),
        average_(average) {}

  FC_DEVICE void copy_span(void* dst, const void* src, uint64_t bytes) const {
    if (dst == src || bytes == 0) return;
    FC_TOUCHES(src, bytes, false);
    FC_TOUCHES(dst, bytes, true);
    copy_by_block(static_cast<char*>(dst), static_cast<const char*>(src), bytes);
  }

  /// A thread reads a position of every source before it writes it, and no other thread touches
  /// it: a destination may be a source.
  template <class Sources>
  FC_DEVICE void reduce_span(void* dst, void* second_dst, const Sources& sources,
                             uint64_t count) const {
    name_spans(dst, second_dst, sources, count * sizeof(T));
    if constexpr (N == 0) {  // so many pointers would take too many registers
      reduce_from(dst, second_dst, sources, count);
    } else {
      const char* from[N];
      FC_UNROLL
      for (int j = 0; j < N; ++j) from[j] = sources(j);
      reduce_from(dst, second_dst, [&](int j) { return from[j]; }, count);
    }
  }

  FC_DEVICE void publish(uint32_t steps) const {
    if (!FC_LEFT_OUT(Control::kNoBarrier)) __syncthreads();
    if (threadIdx.x == 0) store_flag(peers_.flag(peers_.rank, channel_), steps);
  }

  /// Waits; false, in every thread, if the bound ran out or the host gave up.
  FC_DEVICE bool arrived(const WaitFor& wait, uint32_t target) const {
    bool there = true;
    for (int i = threadIdx.x; i < wait.count; i += blockDim.x) {
      const int peer = wait.first + i;
      if (peer != peers_.rank) there = poll(peers_.flag(peer, channel_), target) && there;
    }
    there = __syncthreads_and(there);
    if (!there && threadIdx.x == 0) report(wait, target);
    return there;
  }

 private:
  static constexpr int kWidth = N == 0 ? kMaxTreeSources : tree_width(N);
  // Packs of a thread whose loads are in flight together.
  static constexpr int kPacks = N == 0 || N > kPacksInFlight ? 1 : kPacksInFlight / N;

  FC_DEVICE int ranks() const { return N == 0 ? peers_.size : N; }

  template <class Sources>
  FC_DEVICE void name_spans([[maybe_unused]] const void* dst,
                            [[maybe_unused]] const void* second_dst,
                            [[maybe_unused]] const Sources& sources,
                            [[maybe_unused]] uint64_t bytes) const {
#if defined(FC_SHIM)
    for (int j = 0; j < ranks(); ++j) FC_TOUCHES(sources(j), bytes, false);
    FC_TOUCHES(dst, bytes, true);
    if (second_dst != nullptr) FC_TOUCHES(second_dst, bytes, true);
#endif
  }

  template <class From>
  FC_DEVICE void reduce_from(void* dst, void* second_dst, const From& from, uint64_t count) const {
    uintptr_t bits = address_of(dst) | address_of(second_dst);
    if constexpr (N == 0) {
      FC_NO_UNROLL
      for (int j = 0; j < ranks(); ++j) bits |= address_of(from(j));
    } else {
      FC_UNROLL
      for (int j = 0; j < N; ++j) bits |= address_of(from(j));
    }
    uint64_t done = 0;
    if (bits % kPackBytes == 0) {
      const uint64_t packs = count / kLanes<T, uint4>;
      for (uint64_t i = threadIdx.x; i < packs; i += kPacks * blockDim.x) {
        reduce_raw<uint4, kPacks>(dst, second_dst, from, i, packs);
      }
      done = packs * kLanes<T, uint4>;
    }
    for (uint64_t i = done + threadIdx.x; i < count; i += blockDim.x) {
      reduce_raw<T, 1>(dst, second_dst, from, i, count);
    }
  }

  /// Reduces kMany packs (Raw: uint4) or elements (Raw: T), from `first` on by the width of the
  /// block, those below `end`.
  template <class Raw, int kMany, class From>
  FC_DEVICE void reduce_raw(void* dst, void* second_dst, const From& from, uint64_t first,
                            uint64_t end) const {
    Lanes<T, kLanes<T, Raw>> sums[kMany] = {};
    sum_sources<T, PlainLoad<Raw>, kWidth>(
        0, ranks(), [&](int k) { return first + k * blockDim.x < end; },
        [&](int j, int k) { return from(j) + (first + k * blockDim.x) * sizeof(Raw); }, sums);
    FC_UNROLL
    for (int k = 0; k < kMany; ++k) {
      const uint64_t i = first + k * blockDim.x;
      if (i >= end) break;
      const Raw result = finish<Raw>(sums[k]);
      static_cast<Raw*>(dst)[i] = result;
      if (second_dst != nullptr) static_cast<Raw*>(second_dst)[i] = result;
    }
  }

  /// Divided for AVG, rounded once.
  template <class Raw>
  FC_DEVICE Raw finish(const Lanes<T, kLanes<T, Raw>>& sum) const {
    T out[kLanes<T, Raw>];
    FC_UNROLL
    for (int e = 0; e < kLanes<T, Raw>; ++e) {
      auto value = sum.acc[e];
      if (average_) value = Numeric<T>::divide(value, ranks());
      out[e] = Numeric<T>::store(value);
    }
    Raw result;
    memcpy(&result, out, sizeof(result));
    return result;
  }

  FC_DEVICE bool poll(const uint32_t* flag, uint32_t target) const {
    return wait_for_flag(flag, target, bounds_, [] { return false; });
  }

  /// Looks at every flag once more, so that the record names all that have not come.
  FC_DEVICE void report(const WaitFor& wait, uint32_t target) const {
    uint64_t missing = 0;
    int first = -1;
    uint32_t first_seen = target;
    for (int peer = wait.first + wait.count - 1; peer >= wait.first; --peer) {
      const uint32_t seen = load_flag(peers_.flag(peer, channel_));
      if (peer == peers_.rank || reached(seen, target)) continue;
      missing |= uint64_t{1} << peer;
      first = peer;
      first_seen = seen;
    }
    record_->missing = missing;
    record_->operation = operation_;
    record_->step = target - base_;
    record_->peer = first;
    record_->expected = target;
    record_->seen = first_seen;
    const WaitFailure why = is_aborted(bounds_) ? WaitFailure::kAborted : WaitFailure::kTimeout;
    store_flag(&record_->failure, static_cast<uint32_t>(why));
  }

  const PeerView& peers_;
  const WaitBounds& bounds_;
  WaitRecord* record_;
  int channel_;
  uint32_t base_;
  uint32_t operation_;
  bool average_;
};

}  // namespace fastcomm
