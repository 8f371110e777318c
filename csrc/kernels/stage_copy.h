// Copies to where peers read them: into slots, and into peers' own tensors.
//
// A line that another core's cache still holds costs a store as long as a message to that core and back takes, since the
// stores of a core wait in order: between near cores some 2 to 7 ns a line, between far ones more than 25, which makes a
// copy of 1 MiB last 400 µs. Stores past the caches do not wait for an answer each, and leave the reader to fetch from
// memory: 20 µs between far cores, but more than plain stores between near ones. Where the cores are is not known, since
// a hypervisor moves them. So the first lines of each copy are timed. Source: benchmarks/peers/floor.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/clock.h"
#include "kernels/stream_copy.h"

namespace fastcomm {

/// Where a copy goes, and how long 4 KiB of it take at most where cores are near. Slots take turns: their lines have left
/// the peers' first caches (ADR 32), and take 1.6 ns each, or 5 from far away. A tensor's have not: 7, or 26.
struct StagedTo {
  Clock::duration slow;
};
constexpr StagedTo kToSlot{std::chrono::nanoseconds(250)}, kToTensor{std::chrono::nanoseconds(900)};

class StageCopy {
 public:
  /// memcpy; the two do not overlap. What peers see, and when, is as after memcpy: the publication after it orders it.
  void copy(void* to, const void* from, size_t bytes, StagedTo where) {
    auto* destination = static_cast<char*>(to);
    const auto* source = static_cast<const char*>(from);
    if (bytes < kLeastTimed) {
      std::memcpy(destination, source, bytes);
      return;
    }
    // Neither fetching the source's lines nor the first stores, which wait in the core's buffer, should be timed.
    char here[2 * kTimed];
    std::memcpy(here, source, 2 * kTimed);
    std::memcpy(destination, here, kTimed);
    const Clock::time_point begun = Clock::now();
    std::memcpy(destination + kTimed, here + kTimed, kTimed);
    far_ = Clock::now() - begun > where.slow;
    copy_on(destination + 2 * kTimed, source + 2 * kTimed, bytes - 2 * kTimed);
  }

  /// The same in the way of the last timed copy, which this one continues.
  void copy_on(void* to, const void* from, size_t bytes) const {
    if (far_) {
      stream_copy(static_cast<char*>(to), static_cast<const char*>(from), bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
  }

  /// Whether the last copy that was timed met lines far away.
  bool far() const { return far_; }

 private:
  static constexpr size_t kTimed = 4096, kLeastTimed = 4 * kTimed;

  bool far_ = false;
};

}  // namespace fastcomm
