// A counter for durations in ns: cheaper than the system's clock where the processor has one of
// constant rate, whatever the core and its frequency; else that clock.
#pragma once

#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace fastcomm {

/// CLOCK_MONOTONIC: the same for all processes of a machine.
inline uint64_t monotonic_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

/// True if ticks() reads such a counter.
inline bool has_counter() noexcept {
#if defined(__x86_64__)
  // "Invariant TSC" (Intel SDM 18.17.1, AMD APM CPUID 8000_0007): bit 8 of EDX.
  static const bool found = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1U << 8)) != 0;
  }();
  return found;
#elif defined(__aarch64__)
  return true;  // the generic timer
#else
  return false;
#endif
}

/// A reading. Not ordered with what stands around it: tens of ns do not matter here.
inline uint64_t ticks() noexcept {
#if defined(__x86_64__)
  if (has_counter()) return __rdtsc();
#elif defined(__aarch64__)
  uint64_t count;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#endif
  return monotonic_ns();
}

}  // namespace fastcomm
