// Copies that do not read their destination into the cache first, for more memory than caches hold.
// A plain store to a line that is not in the cache also reads the line, which adds half to the
// memory traffic of a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace fastcomm {

/// Least bytes, written in all, for which such copies are used: fewer are still in the cache for
/// the next reader.
constexpr uint64_t kStreamBytes = 8 * 1024 * 1024;

/// memcpy, past the caches if the processor can and `destination` is aligned to 16 bytes.
/// Other threads see the bytes after the usual synchronisation with this one.
inline void stream_copy(char* destination, const char* source, size_t bytes) {
#if defined(__SSE2__)
  if (reinterpret_cast<uintptr_t>(destination) % 16 == 0) {
    size_t at = 0;
    for (; at + 64 <= bytes; at += 64) {
      const auto* from = reinterpret_cast<const __m128i*>(source + at);
      auto* to = reinterpret_cast<__m128i*>(destination + at);
      const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
      const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
      _mm_stream_si128(to, a);
      _mm_stream_si128(to + 1, b);
      _mm_stream_si128(to + 2, c);
      _mm_stream_si128(to + 3, d);
    }
    _mm_sfence();  // nothing else orders such stores
    destination += at;
    source += at;
    bytes -= at;
  }
#endif
  if (bytes != 0) std::memcpy(destination, source, bytes);
}

}  // namespace fastcomm
