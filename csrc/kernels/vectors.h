// Vectors of fp32, loaded from and stored to fp32, fp16 and bf16, for the loops of one instruction
// set: the conversions of core/numeric.h, lane by lane, and their bits.
//
// They are written out, since the compiler stops vectorising loops with these conversions as soon
// as anything else makes them hard (GCC 12: a second destination), and they then take up to fifty
// times as long. tests/kernels/test_loops.py reads the object code; benchmarks/reduce_loops.py
// measures it.
//
//   Floats    as many fp32 as fit into a register: kFloats
//   Doubles   half as many fp64
//   load_floats, store_floats   from and to as many elements of a type, at any address
//
// Included by translation units of one instruction set each, which define FC_ISA_NAMESPACE and
// FC_VECTOR_BYTES, the width of its registers: 64 with AVX-512 (F, BW, DQ, VL), 32 with AVX2 and
// F16C, 16 anywhere. The result of a lane does not depend on the width.
#pragma once

#if FC_VECTOR_BYTES >= 32
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/numeric.h"

namespace fastcomm {
namespace FC_ISA_NAMESPACE {
namespace {

template <class T, size_t kBytes>
struct VectorOf {
  typedef T type __attribute__((vector_size(kBytes)));
};
template <class T, size_t kCount>
using Vector = typename VectorOf<T, kCount * sizeof(T)>::type;

constexpr size_t kFloats = FC_VECTOR_BYTES / sizeof(float);
using Floats = Vector<float, kFloats>;
using Words = Vector<uint32_t, kFloats>;   // the bits of Floats
using Halves = Vector<uint16_t, kFloats>;  // fp16 or bf16, by their bits
using Doubles = Vector<double, kFloats / 2>;

/// The same bytes as another type.
template <class To, class From>
To as(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "another size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <class To>
To load_bytes(const void* from) {
  To to;
  std::memcpy(&to, from, sizeof(to));
  return to;
}

/// A mask of the `bits`, below 2^31, that are above `bound`: the instruction is for signed numbers.
inline auto above(const Words& bits, uint32_t bound) {
  return as<Vector<int32_t, kFloats>>(bits) > static_cast<int32_t>(bound);
}

// Functions for which each instruction set has its own instructions:
//
//   widened            zeros above each half
//   narrowed           of words below 2^16
//   load_doubles       as many elements as Floats has, as fp64
//   halves_to_floats   half_to_float: hardware does it in any mode of the thread
//   floats_to_halves   float_to_half: every NaN becomes the quiet one without a payload
#if FC_VECTOR_BYTES == 64

constexpr __mmask16 kAll = 0xffff;  // for GCC 12, which warns of the functions without a mask

inline Words widened(const Halves& narrow) {
  return as<Words>(_mm512_maskz_cvtepu16_epi32(kAll, as<__m256i>(narrow)));
}
inline Halves narrowed(const Words& wide) {
  return as<Halves>(_mm512_maskz_cvtepi32_epi16(kAll, as<__m512i>(wide)));
}
inline Doubles doubles_at(const float* from) {
  return as<Doubles>(_mm512_maskz_cvtps_pd(0xff, load_bytes<__m256>(from)));
}
inline Doubles doubles_at(const Half* from) {
  return as<Doubles>(_mm512_maskz_cvtps_pd(0xff, _mm256_cvtph_ps(load_bytes<__m128i>(from))));
}
inline Doubles doubles_at(const BFloat16* from) {
  const __m256i wide = _mm256_cvtepu16_epi32(load_bytes<__m128i>(from));
  return as<Doubles>(_mm512_maskz_cvtps_pd(0xff, as<__m256>(_mm256_slli_epi32(wide, 16))));
}
template <class T>
void load_doubles(const T* from, Doubles& low, Doubles& high) {
  low = doubles_at(from);
  high = doubles_at(from + kFloats / 2);
}
inline Floats halves_to_floats(const Halves& halves) {
  return as<Floats>(_mm512_maskz_cvtph_ps(kAll, as<__m256i>(halves)));
}
inline Halves floats_to_halves(const Floats& floats) {
  const __mmask16 nan = _mm512_cmp_ps_mask(as<__m512>(floats), as<__m512>(floats), _CMP_UNORD_Q);
  // Keeps the sign of a NaN, and sets the bits of a quiet one: (bits & sign) | quiet.
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  const __m512i quiet = _mm512_set1_epi32(0x7fc00000);
  const __m512i plain = _mm512_mask_ternarylogic_epi32(as<__m512i>(floats), nan, sign, quiet, 0xea);
  return as<Halves>(_mm512_maskz_cvtps_ph(kAll, as<__m512>(plain),
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#elif FC_VECTOR_BYTES == 32

inline Words widened(const Halves& narrow) {
  return as<Words>(_mm256_cvtepu16_epi32(as<__m128i>(narrow)));
}
inline Halves narrowed(const Words& wide) {
  const __m256i packed = _mm256_packus_epi32(as<__m256i>(wide), as<__m256i>(wide));
  return as<Halves>(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0b1000)));
}
inline void load_doubles(const float* from, Doubles& low, Doubles& high) {
  low = as<Doubles>(_mm256_cvtps_pd(load_bytes<__m128>(from)));
  high = as<Doubles>(_mm256_cvtps_pd(load_bytes<__m128>(from + kFloats / 2)));
}
inline void load_doubles(const Half* from, Doubles& low, Doubles& high) {
  const __m256 values = _mm256_cvtph_ps(load_bytes<__m128i>(from));
  low = as<Doubles>(_mm256_cvtps_pd(_mm256_castps256_ps128(values)));
  high = as<Doubles>(_mm256_cvtps_pd(_mm256_extractf128_ps(values, 1)));
}
inline void load_doubles(const BFloat16* from, Doubles& low, Doubles& high) {
  const __m128i zero = _mm_setzero_si128(), halves = load_bytes<__m128i>(from);
  low = as<Doubles>(_mm256_cvtps_pd(as<__m128>(_mm_unpacklo_epi16(zero, halves))));
  high = as<Doubles>(_mm256_cvtps_pd(as<__m128>(_mm_unpackhi_epi16(zero, halves))));
}
inline Floats halves_to_floats(const Halves& halves) {
  return as<Floats>(_mm256_cvtph_ps(as<__m128i>(halves)));
}
inline Halves floats_to_halves(const Floats& floats) {
  const __m128i halves = _mm256_cvtps_ph(as<__m256>(floats), _MM_FROUND_TO_NEAREST_INT);
  // A NaN is quiet there, but still has the upper bits of its payload.
  const __m128i magnitude = _mm_and_si128(halves, _mm_set1_epi16(0x7fff));
  const __m128i nan = _mm_cmpgt_epi16(magnitude, _mm_set1_epi16(0x7c00));
  return as<Halves>(_mm_andnot_si128(_mm_and_si128(nan, _mm_set1_epi16(0x01ff)), halves));
}

#else

#if defined(__SSE2__)
inline Words widened(const Halves& narrow) {
  const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(&narrow));
  return as<Words>(_mm_unpacklo_epi16(low, _mm_setzero_si128()));
}
inline Halves narrowed(const Words& wide) {
  // The instruction is for signed numbers that fit.
  const __m128i low = _mm_srai_epi32(_mm_slli_epi32(as<__m128i>(wide), 16), 16);
  Halves narrow;
  _mm_storel_epi64(reinterpret_cast<__m128i*>(&narrow), _mm_packs_epi32(low, low));
  return narrow;
}
inline Doubles lower(const Floats& values) { return as<Doubles>(_mm_cvtps_pd(as<__m128>(values))); }
inline Doubles upper(const Floats& values) {
  const __m128 all = as<__m128>(values);
  return as<Doubles>(_mm_cvtps_pd(_mm_movehl_ps(all, all)));
}
#else
inline Words widened(const Halves& narrow) { return __builtin_convertvector(narrow, Words); }
inline Halves narrowed(const Words& wide) { return __builtin_convertvector(wide, Halves); }
inline Doubles lower(const Floats& values) { return Doubles{values[0], values[1]}; }
inline Doubles upper(const Floats& values) { return Doubles{values[2], values[3]}; }
#endif

// The steps of core/numeric.h, which has the reasons.
inline Floats halves_to_floats(const Halves& halves) {
  const Words wide = widened(halves);
  const Words magnitude = (wide & 0x7fffu) << 13, exponent = magnitude & 0x0f800000u;
  const Words special = exponent == 0x0f800000u ? Words{} + (112u << 23) : Words{};
  const Words quiet = above(magnitude, 0x0f800000u) ? Words{} + 0x00400000u : Words{};
  const Floats offset = as<Floats>(Words{} + (113u << 23));
  const Floats subnormal = as<Floats>(magnitude + (113u << 23)) - offset;
  const Words normal = (magnitude + (112u << 23) + special) | quiet;
  const Words bits = exponent == 0 ? as<Words>(subnormal) : normal;
  return as<Floats>(bits | (wide & 0x8000u) << 16);
}
inline Halves floats_to_halves(const Floats& floats) {
  const Words bits = as<Words>(floats), sign = bits & 0x80000000u, magnitude = bits ^ sign;
  const auto is_normal = above(magnitude, 0x38800000u - 1);
  const Words small = is_normal ? Words{} : magnitude;
  const Words subnormal = as<Words>(as<Floats>(small) + 0.5f) - 0x3f000000u;
  const Words rounded = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const Words special = above(magnitude, 0x7f800000u) ? Words{} + 0x7e00u : Words{} + 0x7c00u;
  const Words half = is_normal ? rounded : subnormal;
  return narrowed((above(magnitude, 0x47800000u - 1) ? special : half) | (sign >> 16));
}

#endif

/// float_to_bfloat16: every NaN becomes 0x7fc0.
inline Halves floats_to_bfloats(const Floats& floats) {
  const Words bits = as<Words>(floats);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return narrowed(above(bits & 0x7fffffffu, 0x7f800000u) ? Words{} + 0x7fc0u : rounded);
}

/// Layout of Floats in memory as elements of T.
template <class T>
struct Lanes;
template <>
struct Lanes<float> {
  using Stored = Floats;
  static Floats widen(const Stored& stored) { return stored; }
  static Stored narrow(const Floats& values) { return values; }
};
template <>
struct Lanes<Half> {
  using Stored = Halves;
  static Floats widen(const Stored& stored) { return halves_to_floats(stored); }
  static Stored narrow(const Floats& values) { return floats_to_halves(values); }
};
template <>
struct Lanes<BFloat16> {
  using Stored = Halves;
  static Floats widen(const Stored& stored) { return as<Floats>(widened(stored) << 16); }
  static Stored narrow(const Floats& values) { return floats_to_bfloats(values); }
};

/// Number of a vector's elements in memory: all, or those at the end of a span.
struct Whole {};
struct Part {
  size_t count;
};

template <class T>
Floats load_floats(const T* from, Whole = {}) {
  return Lanes<T>::widen(load_bytes<typename Lanes<T>::Stored>(from));
}
#if FC_VECTOR_BYTES == 16
template <class T>
void load_doubles(const T* from, Doubles& low, Doubles& high) {
  const Floats values = load_floats(from);
  low = lower(values);
  high = upper(values);
}
#endif
/// Fills up with zeros after the last element.
template <class T>
Floats load_floats(const T* from, Part part) {
  T padded[kFloats] = {};
  std::memcpy(padded, from, part.count * sizeof(T));
  return load_floats(padded);
}

/// Writes narrowed elements to each of some places.
template <class Stored, class... Ts>
void put(const Stored& stored, Whole, Ts*... to) {
  (std::memcpy(to, &stored, sizeof(stored)), ...);
}
template <class Stored, class... Ts>
void put(const Stored& stored, Part part, Ts*... to) {
  (std::memcpy(to, &stored, part.count * sizeof(*to)), ...);
}
template <class T, class Extent, class... Ts>
void store_floats(const Floats& values, Extent extent, T* to, Ts*... more) {
  put(Lanes<T>::narrow(values), extent, to, more...);
}

/// Twice as many bf16 as Floats has, by their places in words of two. Neither way takes an
/// instruction that moves elements between lanes: processors do one per cycle, or none.
struct BFloatPairs {
  Floats first, second;  // of each pair
};
inline BFloatPairs load_pairs(const BFloat16* from) {
  const Words pairs = load_bytes<Words>(from);
  return {as<Floats>(pairs << 16), as<Floats>(pairs & 0xffff0000u)};
}
/// floats_to_bfloats, in the upper halves of words; the lower halves are undefined.
inline Words bfloats_above(const Floats& floats) {
  const Words bits = as<Words>(floats);
  const Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return floats != floats ? Words{} + 0x7fc00000u : rounded;
}
template <class... Ts>
void store_pairs(const BFloatPairs& values, Ts*... to) {
  const Words first = bfloats_above(values.first) >> 16, second = bfloats_above(values.second);
  put(Words{first | (second & 0xffff0000u)}, Whole{}, to...);
}

/// Calls body(i, Whole) for each whole vector of a span, and then body(i, Part) for the rest, if
/// any.
template <class Body>
void each_vector(size_t count, const Body& body) {
  size_t i = 0;
  for (; i + kFloats <= count; i += kFloats) body(i, Whole{});
  if (i < count) body(i, Part{count - i});
}

}  // namespace
}  // namespace FC_ISA_NAMESPACE
}  // namespace fastcomm
