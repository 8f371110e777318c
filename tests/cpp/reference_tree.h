// A plain reference for reductions, written apart from core/numeric.h: the tree level by level over
// a list, conversions by the compiler's _Float16 and by exact distances in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/types.h"

namespace fastcomm::reference {

inline float widen_bfloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

/// The nearer of the two neighbours, by exact distance; the even one in the middle. Finite values
/// that do not overflow.
inline uint16_t narrow_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const auto low = static_cast<uint16_t>(bits >> 16);
  const auto high = static_cast<uint16_t>(low + 1);
  const double below = std::abs(double(value) - double(widen_bfloat16(low)));
  const double above = std::abs(double(widen_bfloat16(high)) - double(value));
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

/// out[i] = the reduction of inputs[r][i] over r; inputs and output as bytes.
template <class T>
void reduce_as(const std::vector<std::vector<char>>& inputs, int divisor, std::vector<char>& out) {
  out.resize(inputs[0].size());
  for (size_t at = 0; at + sizeof(T) <= out.size(); at += sizeof(T)) {
    std::vector<decltype(widen(T{}))> leaves;
    for (const std::vector<char>& input : inputs) {
      T value;
      std::memcpy(&value, &input[at], sizeof(T));
      leaves.push_back(widen(value));
    }
    T result;
    narrow(tree(leaves), divisor, result);
    std::memcpy(&out[at], &result, sizeof(T));
  }
}

inline std::vector<char> reduce(DType dtype, const std::vector<std::vector<char>>& inputs,
                                int divisor) {
  std::vector<char> out;
  switch (dtype) {
    case DType::kFloat32:
      reduce_as<float>(inputs, divisor, out);
      break;
    case DType::kFloat64:
      reduce_as<double>(inputs, divisor, out);
      break;
    case DType::kFloat16:
      reduce_as<Float16>(inputs, divisor, out);
      break;
    case DType::kBFloat16:
      reduce_as<BrainFloat16>(inputs, divisor, out);
      break;
    case DType::kInt8:
      reduce_as<int8_t>(inputs, divisor, out);
      break;
    case DType::kUInt8:
      reduce_as<uint8_t>(inputs, divisor, out);
      break;
    case DType::kInt16:
      reduce_as<int16_t>(inputs, divisor, out);
      break;
    case DType::kInt32:
      reduce_as<int32_t>(inputs, divisor, out);
      break;
    case DType::kInt64:
      reduce_as<int64_t>(inputs, divisor, out);
      break;
    default:
      reduce_as<Boolean>(inputs, divisor, out);
      break;
  }
  return out;
}

}  // namespace fastcomm::reference
