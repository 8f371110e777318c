// Conversions between storage types and accumulators, in arithmetic that vectorises.
//
// fp16, bf16 and fp32 accumulate in fp32; fp64 in fp64; integers wrap in their own type; bool sums
// as logical or. Results are rounded once to the storage type, to nearest even, at the end. Neither
// conversion passes through an fp32 subnormal, so a flush-to-zero mode of the caller's thread
// changes no bit of an fp16 value. The same functions serve host and device; the device uses its
// own instructions for fp16.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/hd.h"

namespace fastcomm {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
struct Bool {
  uint8_t bits;
};
/// An fp32 that travels as a narrower type: every term is rounded to it, and so is the sum.
template <class Wire>
struct Through {
  float value;
};

FC_HD uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

FC_HD float bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

/// Exact. Signalling NaNs become quiet.
FC_HD float half_to_float(uint16_t h) {
#if defined(__CUDA_ARCH__)
  return half_to_float_device(h);
#else
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fffu) << 13;
  const uint32_t exponent = magnitude & 0x0f800000u;
  // Rebias by 112; infinities and NaNs (all exponent bits set) by 224.
  const uint32_t normal = magnitude + (112u << 23) + (exponent == 0x0f800000u ? 112u << 23 : 0u);
  const uint32_t quiet = magnitude > 0x0f800000u ? 0x00400000u : 0u;
  // A subnormal is mantissa * 2^-24: give it the exponent of 2^-14 and take 2^-14 away again.
  const float subnormal = bits_float(magnitude + (113u << 23)) - bits_float(113u << 23);
  const uint32_t bits = exponent == 0 ? float_bits(subnormal) : (normal | quiet);
  return bits_float(bits | sign);
#endif
}

/// Rounds to nearest even; overflow gives infinity, every NaN the quiet NaN 0x7e00 with its sign.
FC_HD uint16_t float_to_half(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = bits & 0x80000000u;
  const uint32_t magnitude = bits ^ sign;
#if defined(__CUDA_ARCH__)
  const uint32_t nan = 0x7e00u | (sign >> 16);
  return magnitude > 0x7f800000u ? static_cast<uint16_t>(nan) : float_to_half_device(value);
#else
  // Adding 0.5 aligns the mantissa of a result below 2^-14 so that the addition itself rounds it.
  const uint32_t subnormal =
      float_bits(bits_float(magnitude < 0x38800000u ? magnitude : 0u) + 0.5f) - 0x3f000000u;
  const uint32_t rounded = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  uint32_t half = magnitude < 0x38800000u ? subnormal : rounded;
  half = magnitude >= 0x47800000u ? special : half;
  return static_cast<uint16_t>(half | (sign >> 16));
#endif
}

FC_HD float bfloat16_to_float(uint16_t b) { return bits_float(static_cast<uint32_t>(b) << 16); }

/// Rounds to nearest even; every NaN becomes 0x7fc0.
FC_HD uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

/// Arithmetic of a storage type: Acc, load, add, divide (AVG), scale (floats only), store.
template <class T>
struct Numeric {  // integers: unsigned arithmetic wraps without undefined behaviour
  using Acc = T;
  using Unsigned = typename std::make_unsigned<T>::type;
  static FC_HD Acc load(T value) { return value; }
  static FC_HD Acc add(Acc a, Acc b) {
    return static_cast<T>(
        static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
  }
  /// `n` may be more than T holds.
  static FC_HD Acc divide(Acc sum, int n) {
    using Wide = typename std::common_type<T, int>::type;
    return static_cast<T>(static_cast<Wide>(sum) / static_cast<Wide>(n));
  }
  static FC_HD Acc scale(Acc sum, double) { return sum; }
  static FC_HD T store(Acc value) { return value; }
};

// The device never contracts a sum into a fused multiply-add, nor divides approximately.
#if defined(__CUDA_ARCH__)
FC_HD float add_rn(float a, float b) { return __fadd_rn(a, b); }
FC_HD float mul_rn(float a, float b) { return __fmul_rn(a, b); }
FC_HD float div_rn(float a, float b) { return __fdiv_rn(a, b); }
FC_HD double add_rn(double a, double b) { return __dadd_rn(a, b); }
FC_HD double mul_rn(double a, double b) { return __dmul_rn(a, b); }
FC_HD double div_rn(double a, double b) { return __ddiv_rn(a, b); }
FC_HD double sqrt_rn(double value) { return __dsqrt_rn(value); }
FC_HD double fma_rn(double a, double b, double c) { return __fma_rn(a, b, c); }
#else
FC_HD float add_rn(float a, float b) { return a + b; }
FC_HD float mul_rn(float a, float b) { return a * b; }
FC_HD float div_rn(float a, float b) { return a / b; }
FC_HD double add_rn(double a, double b) { return a + b; }
FC_HD double mul_rn(double a, double b) { return a * b; }
FC_HD double div_rn(double a, double b) { return a / b; }
FC_HD double sqrt_rn(double value) { return std::sqrt(value); }
FC_HD double fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
#endif

/// For types that accumulate in Float, which is one of them.
template <class Float>
struct FloatNumeric {
  using Acc = Float;
  static FC_HD Acc load(Float value) { return value; }
  static FC_HD Acc add(Acc a, Acc b) { return add_rn(a, b); }
  static FC_HD Acc divide(Acc sum, int n) { return div_rn(sum, static_cast<Float>(n)); }
  static FC_HD Acc scale(Acc sum, double factor) { return mul_rn(sum, static_cast<Float>(factor)); }
  static FC_HD Float store(Acc value) { return value; }
};

template <>
struct Numeric<float> : FloatNumeric<float> {};
template <>
struct Numeric<double> : FloatNumeric<double> {};

template <>
struct Numeric<Half> : FloatNumeric<float> {
  static FC_HD Acc load(Half value) { return half_to_float(value.bits); }
  static FC_HD Half store(Acc value) { return Half{float_to_half(value)}; }
};

template <>
struct Numeric<BFloat16> : FloatNumeric<float> {
  static FC_HD Acc load(BFloat16 value) { return bfloat16_to_float(value.bits); }
  static FC_HD BFloat16 store(Acc value) { return BFloat16{float_to_bfloat16(value)}; }
};

template <class Wire>
struct Numeric<Through<Wire>> : FloatNumeric<float> {
  static FC_HD float load(Through<Wire> v) { return rounded(v.value); }
  static FC_HD Through<Wire> store(Acc value) { return Through<Wire>{rounded(value)}; }
  static FC_HD float rounded(float value) {
    return Numeric<Wire>::load(Numeric<Wire>::store(value));
  }
};

template <>
struct Numeric<Bool> {  // True + True is True, as in torch
  using Acc = uint8_t;
  static FC_HD Acc load(Bool value) { return value.bits != 0; }
  static FC_HD Acc add(Acc a, Acc b) { return a | b; }
  static FC_HD Acc divide(Acc sum, int) { return sum; }
  static FC_HD Acc scale(Acc sum, double) { return sum; }
  static FC_HD Bool store(Acc value) { return Bool{value}; }
};

/// The largest power of two below n (n >= 2): the size of the left half of a balanced tree over n.
FC_HD constexpr int tree_left(int n) {
  int left = 1;
  while (left * 2 < n) left *= 2;
  return left;
}

/// Combines load(first), ..., load(first + N - 1) in the order of the fixed balanced binary tree:
/// (0,1), (2,3), ..., then pairs of pairs; an odd one passes up.
template <class Op, int N, class Load>
FC_HD typename Op::Acc tree(int first, const Load& load) {
  if constexpr (N == 1) {
    return load(first);
  } else {
    constexpr int kLeft = tree_left(N);
    const auto left = tree<Op, kLeft>(first, load);
    const auto right = tree<Op, N - kLeft>(first + kLeft, load);
    return Op::combine(left, right);
  }
}

}  // namespace fastcomm
