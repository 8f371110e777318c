// Copies to memory that peers read: into slots, and into peers' own tensors.
//
// A store to a line that another core's cache still holds takes as long as a message to that core
// and back, since the stores of a core wait in order: between near cores some 2 to 7 ns per line,
// between far ones more than 25, which makes a copy of 1 MiB last 0.4 ms. Stores past the caches do
// not wait for an answer each, and leave the reader to fetch from memory: 20 µs between far cores,
// but more than plain stores between near ones. The place of the cores is unknown, since a
// hypervisor moves them. So the first lines of each copy are timed. Source:
// benchmarks/peers/floor.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/clock.h"
#include "kernels/stream_copy.h"

namespace fastcomm {

/// The kind of a copy's destination, and the longest time of 4 KiB between near cores. Slots take
/// turns: their lines have left the peers' first caches (ADR 32), and take 1.6 ns each, or 5 from
/// far away. A tensor's lines have not: 7, or 26.
struct StagedTo {
  Clock::duration slow;
};
constexpr StagedTo kToSlot{std::chrono::nanoseconds(250)}, kToTensor{std::chrono::nanoseconds(900)};

class StageCopy {
 public:
  /// memcpy; the two do not overlap. Peers see the bytes as after memcpy: the publication after it
  /// orders them.
  void copy(void* to, const void* from, size_t bytes, StagedTo where) {
    auto* destination = static_cast<char*>(to);
    const auto* source = static_cast<const char*>(from);
    if (bytes < kLeastTimed) {
      std::memcpy(destination, source, bytes);
      return;
    }
    // The source is fetched and the first stores, which wait in the core's buffer, are done before
    // the clock starts: neither should be timed.
    char here[2 * kTimed];
    std::memcpy(here, source, 2 * kTimed);
    std::memcpy(destination, here, kTimed);
    const Clock::time_point begun = Clock::now();
    std::memcpy(destination + kTimed, here + kTimed, kTimed);
    far_ = Clock::now() - begun > where.slow;
    copy_on(destination + 2 * kTimed, source + 2 * kTimed, bytes - 2 * kTimed);
  }

  /// The same, in the way chosen by the last timed copy, which this one continues.
  void copy_on(void* to, const void* from, size_t bytes) const {
    if (far_) {
      stream_copy(static_cast<char*>(to), static_cast<const char*>(from), bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
  }

  /// True if the last timed copy met lines far away.
  bool far() const { return far_; }

 private:
  static constexpr size_t kTimed = 4096, kLeastTimed = 4 * kTimed;

  bool far_ = false;
};

}  // namespace fastcomm
