// MIN, MAX, PRODUCT, BAND, BOR and BXOR of two values, on CPU and CUDA: the one definition behind
// the CPU's loops (kernels/reduce_plain.inc) and the kernels (kernels/cuda/multi_combine.cu).
// kernels/reduce_cpu.h has their contract.
//
// A combination has
//   Value, Acc              storage type and accumulator
//   load, combine, store    without state
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/hd.h"
#include "core/numeric.h"

namespace fastcomm {

/// A floating-point type seen as an integer.
template <class Signed, int kMantissaBits>
struct Format {
  using Int = Signed;
  using Bits = typename std::make_unsigned<Int>::type;
  static constexpr int kBits = 8 * static_cast<int>(sizeof(Int));
  static constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  static constexpr Bits kMantissa = static_cast<Bits>((Bits{1} << kMantissaBits) - 1);
  static constexpr Bits kInfinity = kMagnitude & static_cast<Bits>(~kMantissa);
  static constexpr Bits kNaN =
      static_cast<Bits>(kInfinity | static_cast<Bits>(Bits{1} << (kMantissaBits - 1)));

  /// Inverts the other bits of a negative number, so that the integers have the order of the
  /// floats, -0 below +0, NaNs at both ends. Applied twice it does nothing.
  static FC_HD Bits turned(Bits bits) {
    return static_cast<Bits>(
        bits ^ static_cast<Bits>(static_cast<Bits>(static_cast<Int>(bits) >> (kBits - 1)) >> 1));
  }
};

template <class T>
struct FormatOf;
template <>
struct FormatOf<float> : Format<int32_t, 23> {};
template <>
struct FormatOf<double> : Format<int64_t, 52> {};
template <>
struct FormatOf<Half> : Format<int16_t, 10> {};
template <>
struct FormatOf<BFloat16> : Format<int16_t, 7> {};

/// MIN or MAX of floats, without a floating-point instruction: no mode of the caller's thread
/// matters. The order is shifted by the number of NaNs of one sign, so that those at the wrong end
/// wrap round to the right one, where they win.
template <class T, bool kMax>
struct FloatExtreme {
  using Form = FormatOf<T>;
  using Bits = typename Form::Bits;
  using Value = T;
  using Acc = typename Form::Int;

  static constexpr Bits kShift = kMax ? static_cast<Bits>(~Form::kMantissa + 1) : Form::kMantissa;
  /// The shifted place of the infinity beside the NaNs.
  static constexpr Acc kLast = static_cast<Acc>(
      static_cast<Bits>((kMax ? Form::kInfinity : static_cast<Bits>(~Form::kInfinity)) + kShift));

  static FC_HD Acc load(T value) {
    Bits bits;
    memcpy(&bits, &value, sizeof(bits));
    return static_cast<Acc>(static_cast<Bits>(Form::turned(bits) + kShift));
  }
  static FC_HD Acc combine(Acc a, Acc b) {
    if constexpr (kMax) return a > b ? a : b;
    return a < b ? a : b;
  }
  static FC_HD T store(Acc acc) {
    const Bits number = Form::turned(static_cast<Bits>(static_cast<Bits>(acc) - kShift));
    const bool nan = kMax ? acc > kLast : acc < kLast;
    const Bits bits = nan ? Form::kNaN : number;
    T value;
    memcpy(&value, &bits, sizeof(value));
    return value;
  }
};

/// Stored as it is accumulated, except for a rounding.
template <class T>
struct Stored {
  using Value = T;
  using Acc = typename Numeric<T>::Acc;
  static FC_HD Acc load(T value) { return Numeric<T>::load(value); }
  static FC_HD T store(Acc acc) { return Numeric<T>::store(acc); }
};

template <class T, bool kMax>
struct IntegerExtreme : Stored<T> {
  static FC_HD T combine(T a, T b) {
    if constexpr (kMax) return a > b ? a : b;
    return a < b ? a : b;
  }
};

template <class T>
struct FloatProduct : Stored<T> {
  using typename Stored<T>::Acc;
  static FC_HD Acc combine(Acc a, Acc b) { return mul_rn(a, b); }
};

/// Wraps, so unsigned types serve signed ones too. The factor 1u keeps two uint16 from being
/// multiplied as int.
template <class T>
struct IntegerProduct : Stored<T> {
  static FC_HD T combine(T a, T b) { return static_cast<T>(1u * a * b); }
};

template <class T>
struct And : Stored<T> {
  using typename Stored<T>::Acc;
  static FC_HD Acc combine(Acc a, Acc b) { return a & b; }
};

template <class T>
struct Or : Stored<T> {
  using typename Stored<T>::Acc;
  static FC_HD Acc combine(Acc a, Acc b) { return a | b; }
};

template <class T>
struct Xor : Stored<T> {
  using typename Stored<T>::Acc;
  static FC_HD Acc combine(Acc a, Acc b) { return a ^ b; }
};

}  // namespace fastcomm
