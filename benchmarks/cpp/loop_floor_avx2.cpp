#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace floor_loops {
namespace {

struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

struct V {
  using Register = __m256;
  static constexpr size_t kLanes = 8;
  static __m256 add(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
  static __m256 div(__m256 a, __m256 b) { return _mm256_div_ps(a, b); }
  static __m256 mul(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
  static __m256 all(float number) { return _mm256_set1_ps(number); }
  static __m256 load(const float* p) { return _mm256_loadu_ps(p); }
  static __m256 load(const Bf16* p) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static __m256 load(const Fp16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void store(float* p, __m256 v) { _mm256_storeu_ps(p, v); }
  /// To nearest even; a NaN becomes 0x7fc0.
  static void store(Bf16* p, __m256 v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
    const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    rounded = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), _mm256_castps_si256(nan));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  /// A NaN becomes 0x7e00.
  static void store(Fp16* p, __m256 v) {
    const __m128i halves = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
    const __m128i magnitude = _mm_and_si128(halves, _mm_set1_epi16(0x7fff));
    const __m128i nan = _mm_cmpgt_epi16(magnitude, _mm_set1_epi16(0x7c00));
    const __m128i fixed = _mm_blendv_epi8(halves, _mm_set1_epi16(0x7e00), nan);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), fixed);
  }
};

}  // namespace
}  // namespace floor_loops

#include "loop_floor.inc"

const floor_loops::Loops* floor_loops::avx2_loops() {
  static const Loops loops = make();
  return &loops;
}
