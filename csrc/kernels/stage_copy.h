// Copies to where peers read them: into slots, and into peers' own tensors.
//
// A line that another core's cache still holds costs a store as long as a message to that core and back takes, for the
// stores of a core wait in order: between near cores some 2 to 7 ns a line, between far ones more than 25, which makes a
// copy of 1 MiB last 400 µs. Stores past the caches need no answer before the next, and leave the reader to fetch from
// memory: 20 µs between far cores, but more than plain stores between near ones. Where the cores are is not known: they
// are a hypervisor's, which moves them. So the first lines of each copy are timed. Source: benchmarks/cpp/floor.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/clock.h"
#include "kernels/stream_copy.h"

namespace fastcomm {

class StageCopy {
 public:
  /// A copy goes past the caches if 4 KiB at its begin take longer than `slow`; by default 4 ns a line.
  explicit StageCopy(Clock::duration slow = std::chrono::nanoseconds(250)) : slow_(slow) {}

  /// memcpy; the two do not overlap. What peers see, and when, is as after memcpy: the publication behind it orders it.
  void copy(void* to, const void* from, size_t bytes) {
    auto* destination = static_cast<char*>(to);
    const auto* source = static_cast<const char*>(from);
    if (bytes < kLeastTimed) {
      std::memcpy(destination, source, bytes);
      return;
    }
    // Where the source's lines are is not to be timed, nor the first stores, which wait in the core's buffer.
    char here[2 * kTimed];
    std::memcpy(here, source, 2 * kTimed);
    std::memcpy(destination, here, kTimed);
    const Clock::time_point begun = Clock::now();
    std::memcpy(destination + kTimed, here + kTimed, kTimed);
    far_ = Clock::now() - begun > slow_;
    const auto rest = far_ ? stream_copy : plain_copy;
    rest(destination + 2 * kTimed, source + 2 * kTimed, bytes - 2 * kTimed);
  }

  /// Whether the last copy that was timed met lines far away.
  bool far() const { return far_; }

 private:
  static constexpr size_t kTimed = 4096, kLeastTimed = 4 * kTimed;

  static void plain_copy(char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); }

  Clock::duration slow_;
  bool far_ = false;
};

}  // namespace fastcomm
