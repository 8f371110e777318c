// A plain reference for reductions, independent of core/numeric.h: the tree level by level over a
// list, conversions by the compiler's _Float16 and by exact distances in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/types.h"

namespace fastcomm::reference {

inline float widen_bfloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

/// The nearer of the two neighbours, by exact distance; the even one in the middle.
inline uint16_t narrow_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const auto low = static_cast<uint16_t>(bits >> 16);
  if (std::isnan(value)) return 0x7fc0;
  if (std::isinf(value)) return low;
  const auto high = static_cast<uint16_t>(low + 1);
  double next = widen_bfloat16(high);
  if (std::isinf(next)) next = std::copysign(std::ldexp(1.0, 128), next);  // what it stands for
  const double below = std::abs(double(value) - double(widen_bfloat16(low)));
  const double above = std::abs(next - double(value));
  if (below != above) return below < above ? low : high;
  return low % 2 == 0 ? low : high;
}

struct Float16 {
  _Float16 value;
};
struct BrainFloat16 {
  uint16_t bits;
};
struct Boolean {
  uint8_t value;
};

inline float widen(float v) { return v; }
inline double widen(double v) { return v; }
inline float widen(Float16 v) { return static_cast<float>(v.value); }
inline float widen(BrainFloat16 v) { return widen_bfloat16(v.bits); }
inline uint64_t widen(Boolean v) { return v.value; }
template <class Integer>
uint64_t widen(Integer v) {  // modulo 2^64, which is modulo every smaller power too
  return static_cast<uint64_t>(v);
}

inline void narrow(float sum, int divisor, float& out) { out = divisor > 1 ? sum / divisor : sum; }
inline void narrow(double sum, int divisor, double& out) {
  out = divisor > 1 ? sum / divisor : sum;
}
inline void narrow(float sum, int divisor, Float16& out) {
  float mean;
  narrow(sum, divisor, mean);
  out.value = static_cast<_Float16>(mean);
}
inline void narrow(float sum, int divisor, BrainFloat16& out) {
  float mean;
  narrow(sum, divisor, mean);
  out.bits = narrow_bfloat16(mean);
}
inline void narrow(uint64_t sum, int, Boolean& out) { out.value = sum != 0; }
template <class Integer>
void narrow(uint64_t sum, int divisor, Integer& out) {
  const auto wrapped = static_cast<Integer>(sum);
  // Division truncates towards zero; in 64 bits it cannot overflow for the sizes of a group.
  out = divisor > 1 ? static_cast<Integer>(wrapped / static_cast<Integer>(divisor)) : wrapped;
}

/// The tree over one list: neighbours, then neighbours of sums; an odd one passes up.
template <class Acc>
Acc tree(std::vector<Acc> level) {
  while (level.size() > 1) {
    std::vector<Acc> next;
    for (size_t i = 0; i + 1 < level.size(); i += 2) next.push_back(level[i] + level[i + 1]);
    if (level.size() % 2 == 1) next.push_back(level.back());
    level = next;
  }
  return level[0];
}

/// What is done to a sum before it is rounded to the output: each step in the accumulator.
struct Epilogue {
  int divisor = 1;
  double scale = 1;
  double factor = 1;  // for each term, before the sum
};

inline float premultiplied(float term, double factor) {
  return factor == 1 ? term : term * static_cast<float>(factor);
}
inline double premultiplied(double term, double factor) { return term * factor; }
inline uint64_t premultiplied(uint64_t term, double) { return term; }

inline float scaled(float sum, const Epilogue& last) {
  if (last.divisor > 1) sum /= last.divisor;
  return last.scale == 1 ? sum : sum * static_cast<float>(last.scale);
}
inline double scaled(double sum, const Epilogue& last) {
  if (last.divisor > 1) sum /= last.divisor;
  return last.scale == 1 ? sum : sum * last.scale;
}

/// out[i] = the reduction of inputs[r][i] over r; inputs and output as bytes.
template <class In, class Out>
void reduce_as(const std::vector<std::vector<char>>& inputs, const Epilogue& last,
               std::vector<char>& out) {
  const size_t count = inputs[0].size() / sizeof(In);
  out.resize(count * sizeof(Out));
  for (size_t i = 0; i < count; ++i) {
    std::vector<decltype(widen(In{}))> leaves;
    for (const std::vector<char>& input : inputs) {
      In value;
      std::memcpy(&value, &input[i * sizeof(In)], sizeof(In));
      leaves.push_back(premultiplied(widen(value), last.factor));
    }
    Out result;
    if constexpr (std::is_same_v<decltype(widen(In{})), uint64_t>) {
      narrow(tree(leaves), last.divisor, result);
    } else {
      narrow(scaled(tree(leaves), last), 1, result);
    }
    std::memcpy(&out[i * sizeof(Out)], &result, sizeof(Out));
  }
}

/// Calls use(T{}) with the type of a dtype.
template <class Use>
auto with_type(DType dtype, const Use& use) {
  switch (dtype) {
    case DType::kFloat32:
      return use(float{});
    case DType::kFloat64:
      return use(double{});
    case DType::kFloat16:
      return use(Float16{});
    case DType::kBFloat16:
      return use(BrainFloat16{});
    case DType::kInt8:
      return use(int8_t{});
    case DType::kUInt8:
      return use(uint8_t{});
    case DType::kInt16:
      return use(int16_t{});
    case DType::kUInt16:
      return use(uint16_t{});
    case DType::kInt32:
      return use(int32_t{});
    case DType::kUInt32:
      return use(uint32_t{});
    case DType::kInt64:
      return use(int64_t{});
    case DType::kUInt64:
      return use(uint64_t{});
    default:
      return use(Boolean{});
  }
}

/// To the same type, or between those that add in float.
inline std::vector<char> reduce(DType from, DType to, const std::vector<std::vector<char>>& inputs,
                                const Epilogue& last) {
  std::vector<char> out;
  with_type(from, [&](auto given) {
    using In = decltype(given);
    if (from == to) return reduce_as<In, In>(inputs, last, out);
    with_type(to, [&](auto wanted) {
      using Out = decltype(wanted);
      if constexpr (std::is_same_v<decltype(widen(In{})), float> &&
                    std::is_same_v<decltype(widen(Out{})), float>) {
        reduce_as<In, Out>(inputs, last, out);
      }
    });
  });
  return out;
}

inline std::vector<char> reduce(DType dtype, const std::vector<std::vector<char>>& inputs,
                                int divisor) {
  return reduce(dtype, dtype, inputs, Epilogue{divisor, 1});
}

}  // namespace fastcomm::reference
