// A plain reference for MIN, MAX, PRODUCT, BAND, BOR and BXOR, independent of the loops: floats by
// comparisons in double, source by source; products by the tree of reference_tree.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/types.h"
#include "reference_tree.h"

namespace fastcomm::reference {

inline Float16 quiet_nan(Float16) { return {static_cast<_Float16>(__builtin_nanf(""))}; }
inline BrainFloat16 quiet_nan(BrainFloat16) { return {0x7fc0}; }
template <class Float>
Float quiet_nan(Float) {
  return std::numeric_limits<Float>::quiet_NaN();
}

/// Whether a is the smaller of two numbers; -0 is less than +0.
inline bool less(double a, double b) {
  return a < b || (a == b && std::signbit(a) && !std::signbit(b));
}

template <class T>
constexpr bool kIsInteger = std::is_same_v<decltype(widen(T{})), uint64_t>;

template <class T>
T extreme(const std::vector<T>& terms, bool max) {
  T found = terms[0];
  for (const T& term : terms) {
    if constexpr (std::is_same_v<T, Boolean>) {
      const bool a = found.value != 0, b = term.value != 0;
      found.value = max ? a || b : a && b;
    } else if constexpr (kIsInteger<T>) {
      if (max ? found < term : term < found) found = term;
    } else {
      const double a = widen(found), b = widen(term);
      if (std::isnan(a) || std::isnan(b)) return quiet_nan(T{});
      if (max ? less(a, b) : less(b, a)) found = term;
    }
  }
  return found;
}

/// A factor of a product: multiplies where tree() adds.
template <class Acc>
struct Factor {
  Acc value;
  Factor operator+(const Factor& other) const { return {value * other.value}; }
};

template <class T>
T product(const std::vector<T>& terms) {
  T result;
  if constexpr (std::is_same_v<T, Boolean>) {
    return extreme(terms, false);
  } else {
    std::vector<Factor<decltype(widen(T{}))>> leaves;
    for (const T& term : terms) leaves.push_back({widen(term)});
    narrow(tree(leaves).value, 1, result);
    if constexpr (!kIsInteger<T>) {
      if (std::isnan(double(widen(result)))) return quiet_nan(T{});  // whichever NaN it was
    }
  }
  return result;
}

template <class T>
T of_bits(const std::vector<T>& terms, ReduceOp op) {
  const auto number = [](const T& term) {
    uint64_t value = widen(term);
    if constexpr (std::is_same_v<T, Boolean>) value = value != 0;
    return value;
  };
  uint64_t bits = number(terms[0]);
  for (size_t j = 1; j < terms.size(); ++j) {
    const uint64_t other = number(terms[j]);
    bits = op == ReduceOp::kBand  ? bits & other
           : op == ReduceOp::kBor ? bits | other
                                  : bits ^ other;
  }
  T result;
  narrow(bits, 1, result);
  return result;
}

template <class T>
std::vector<char> plain_as(ReduceOp op, const std::vector<std::vector<char>>& inputs) {
  std::vector<char> out(inputs[0].size());
  for (size_t at = 0; at < out.size(); at += sizeof(T)) {
    std::vector<T> terms(inputs.size());
    for (size_t j = 0; j < inputs.size(); ++j) std::memcpy(&terms[j], &inputs[j][at], sizeof(T));
    T result{};
    if (op == ReduceOp::kMin || op == ReduceOp::kMax) {
      result = extreme(terms, op == ReduceOp::kMax);
    } else if (op == ReduceOp::kProduct) {
      result = product(terms);
    } else if constexpr (kIsInteger<T>) {
      result = of_bits(terms, op);
    }
    std::memcpy(&out[at], &result, sizeof(T));
  }
  return out;
}

inline std::vector<char> reduce_plain(DType dtype, ReduceOp op,
                                      const std::vector<std::vector<char>>& inputs) {
  return with_type(dtype, [&](auto type) { return plain_as<decltype(type)>(op, inputs); });
}

/// Makes every NaN of a result the quiet one without sign.
inline void forget_payloads(DType dtype, char* data, size_t bytes) {
  if (!is_floating(dtype)) return;
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    for (size_t at = 0; at < bytes; at += sizeof(T)) {
      T value;
      std::memcpy(&value, data + at, sizeof(T));
      if (std::isnan(double(widen(value)))) value = quiet_nan(T{});
      std::memcpy(data + at, &value, sizeof(T));
    }
  });
}

}  // namespace fastcomm::reference
