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
  using Register = __m512;
  static constexpr size_t kLanes = 16;
  static constexpr __mmask16 kAll = 0xffff;  // GCC 12 warns of the functions without a mask
  static __m512 add(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
  static __m512 div(__m512 a, __m512 b) { return _mm512_div_ps(a, b); }
  static __m512 mul(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
  static __m512 all(float number) { return _mm512_set1_ps(number); }
  static __m512 load(const float* p) { return _mm512_loadu_ps(p); }
  static __m512 load(const Bf16* p) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(
        _mm512_maskz_slli_epi32(kAll, _mm512_maskz_cvtepu16_epi32(kAll, halves), 16));
  }
  static __m512 load(const Fp16* p) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_maskz_cvtph_ps(kAll, halves);
  }
  static void store(float* p, __m512 v) { _mm512_storeu_ps(p, v); }
  /// To nearest even; a NaN becomes 0x7fc0.
  static void store(Bf16* p, __m512 v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd =
        _mm512_and_si512(_mm512_maskz_srli_epi32(kAll, bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_maskz_srli_epi32(kAll, _mm512_add_epi32(bits, up), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i fixed = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtepi32_epi16(kAll, fixed));
  }
  /// A NaN becomes 0x7e00.
  static void store(Fp16* p, __m512 v) {
    const __m256i halves = _mm512_maskz_cvtps_ph(kAll, v, _MM_FROUND_TO_NEAREST_INT);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m256i fixed = _mm256_mask_mov_epi16(halves, nan, _mm256_set1_epi16(0x7e00));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), fixed);
  }
};

}  // namespace
}  // namespace floor_loops

#include "loop_floor.inc"

const floor_loops::Loops* floor_loops::avx512_loops() {
  static const Loops loops = make();
  return &loops;
}
