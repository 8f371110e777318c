// Modes of the processor that change what arithmetic makes of subnormals.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastcomm::testing {

/// Flushes subnormals to zero in this thread, as torch.set_flush_denormal(True) does, where that
/// can be done.
inline void flush_subnormals(bool on) {
#if defined(__x86_64__)
  constexpr unsigned kFlush = 0x8000, kDenormalsAreZero = 0x0040;
  const unsigned now = _mm_getcsr() & ~(kFlush | kDenormalsAreZero);
  _mm_setcsr(on ? now | kFlush | kDenormalsAreZero : now);
#else
  static_cast<void>(on);
#endif
}

}  // namespace fastcomm::testing
