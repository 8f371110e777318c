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

#include "core/hd.h"
#include "core/numeric.h"
#include "kernels/channel.h"
#include "kernels/cuda_api.h"
#include "transport/peer_view.h"

namespace fastcomm {

constexpr int kPackBytes = 16;
constexpr int kPacksInFlight = 4;  // loads that a thread issues before it stores: hides latency

// A wait looks at the clock once in so many polls, and at the abort word, which lies across the
// bus, once in so many nanoseconds.
constexpr uint32_t kPollsPerLook = 32;
constexpr uint64_t kLookEveryNs = 100'000;

FC_HD uintptr_t address_of(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

/// Copies `count` units from `src` to `dst`, both aligned to a unit.
template <class Unit>
FC_DEVICE void copy_units(void* dst, const void* src, uint64_t count) {
  Unit* to = static_cast<Unit*>(dst);
  const Unit* from = static_cast<const Unit*>(src);
  const uint64_t width = blockDim.x;
  uint64_t i = threadIdx.x;
  for (; i + (kPacksInFlight - 1) * width < count; i += kPacksInFlight * width) {
    Unit units[kPacksInFlight];
    FC_UNROLL
    for (int k = 0; k < kPacksInFlight; ++k) units[k] = from[i + k * width];
    FC_UNROLL
    for (int k = 0; k < kPacksInFlight; ++k) to[i + k * width] = units[k];
  }
  for (; i < count; i += width) to[i] = from[i];
}

/// Copies bytes in units, after a head of single bytes that aligns both addresses to a unit.
template <class Unit>
FC_DEVICE void copy_aligning(char* dst, const char* src, uint64_t bytes) {
  const uint64_t misaligned = address_of(dst) % sizeof(Unit);
  uint64_t head = misaligned == 0 ? 0 : sizeof(Unit) - misaligned;
  if (head > bytes) head = bytes;
  const uint64_t units = (bytes - head) / sizeof(Unit);
  const uint64_t tail = head + units * sizeof(Unit);
  for (uint64_t i = threadIdx.x; i < head; i += blockDim.x) dst[i] = src[i];
  for (uint64_t i = tail + threadIdx.x; i < bytes; i += blockDim.x) dst[i] = src[i];
  copy_units<Unit>(dst + head, src + head, units);
}

/// The copy of memory whose ends cannot be aligned to a pack at once, in the largest unit to which
/// they can. Rare and slow, so not inlined: it would cost the fast path registers.
FC_DEVICE_COLD void copy_apart(char* dst, const char* src, uint64_t bytes) {
  const uintptr_t apart = address_of(dst) ^ address_of(src);
  if (apart % sizeof(uint32_t) == 0) {
    copy_aligning<uint32_t>(dst, src, bytes);
  } else if (apart % sizeof(uint16_t) == 0) {
    copy_aligning<uint16_t>(dst, src, bytes);
  } else {
    copy_units<uint8_t>(dst, src, bytes);
  }
}

/// T: storage type (core/numeric.h). N: ranks.
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
    char* to = static_cast<char*>(dst);
    const char* from = static_cast<const char*>(src);
    if ((address_of(to) ^ address_of(from)) % kPackBytes == 0) {
      copy_aligning<uint4>(to, from, bytes);
    } else {
      copy_apart(to, from, bytes);
    }
  }

  /// A thread reads a position of every source before it writes it, and no other thread touches
  /// it: a destination may be a source.
  template <class Sources>
  FC_DEVICE void reduce_span(void* dst, void* second_dst, const Sources& sources,
                             uint64_t count) const {
    const T* from[N];
    uintptr_t bits = address_of(dst) | address_of(second_dst);
    FC_UNROLL
    for (int j = 0; j < N; ++j) {
      from[j] = reinterpret_cast<const T*>(sources(j));
      bits |= address_of(from[j]);
    }
    T* to = static_cast<T*>(dst);
    T* second = static_cast<T*>(second_dst);
    uint64_t done = 0;
    if (bits % kPackBytes == 0) {
      const uint64_t packs = count / kPackElements;
      for (uint64_t i = threadIdx.x; i < packs; i += blockDim.x) reduce_pack(to, second, from, i);
      done = packs * kPackElements;
    }
    for (uint64_t i = done + threadIdx.x; i < count; i += blockDim.x) {
      const T value = reduced([&](int j) { return from[j][i]; });
      to[i] = value;
      if (second != nullptr) second[i] = value;
    }
  }

  FC_DEVICE void publish(uint32_t steps) const {
#if !defined(FC_NO_BARRIER)  // a negative control of the tests, which must be reported
    __syncthreads();
#endif
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
  static constexpr int kPackElements = kPackBytes / sizeof(T);

  /// The tree over ranks of load(rank), divided for AVG, rounded once.
  template <class Load>
  FC_DEVICE T reduced(const Load& load) const {
    using Num = Numeric<T>;
    auto sum = tree_sum<T, N>(0, [&](int j) { return Num::load(load(j)); });
    if (average_) sum = Num::divide(sum, N);
    return Num::store(sum);
  }

  FC_DEVICE void reduce_pack(T* to, T* second, const T* const (&from)[N], uint64_t i) const {
    T in[N][kPackElements];
    T out[kPackElements];
    FC_UNROLL
    for (int j = 0; j < N; ++j) {
      const uint4 pack = reinterpret_cast<const uint4*>(from[j])[i];
      memcpy(in[j], &pack, sizeof(pack));
    }
    FC_UNROLL
    for (int e = 0; e < kPackElements; ++e) out[e] = reduced([&](int j) { return in[j][e]; });
    uint4 pack;
    memcpy(&pack, out, sizeof(pack));
    reinterpret_cast<uint4*>(to)[i] = pack;
    if (second != nullptr) reinterpret_cast<uint4*>(second)[i] = pack;
  }

  FC_DEVICE bool poll(const uint32_t* flag, uint32_t target) const {
    uint64_t begin = 0;  // 0: the clock has not been read yet
    uint64_t next_look = 0;
    for (uint32_t polls = 1; !reached(load_flag(flag), target); ++polls) {
      FC_YIELD();
      if (polls % kPollsPerLook != 0) continue;
      const uint64_t now = clock_ns();
      if (begin == 0) begin = now;
      if (now < next_look) continue;
      next_look = now + kLookEveryNs;
      if (now - begin >= bounds_.timeout_ns || aborted()) return false;
    }
    return true;
  }

  FC_DEVICE bool aborted() const {
    return bounds_.abort_word != nullptr && load_relaxed(bounds_.abort_word) != 0;
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
    const WaitFailure why = aborted() ? WaitFailure::kAborted : WaitFailure::kTimeout;
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
