// The loops of kernels/add_rms_norm_cpu.h, to the bit, against the definition in plain arithmetic.
//
//   add_rms_norm_test CASE SEED        FASTCOMM_ISA chooses the instruction set
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/add_rms_norm_cpu.h"
#include "kernels/isa.h"
#include "random_values.h"
#include "reference_tree.h"
#include "special_values.h"

namespace fastcomm::testing {
namespace {

constexpr size_t kRows = 3;

template <class T>
T rounded(float value) {
  T narrow;
  reference::narrow(value, 1, narrow);
  return narrow;
}

/// One row, as the header defines it.
template <class T>
void expect_row(T* x, T* residual, const T* weight, size_t hidden, float eps) {
  std::vector<float> lanes(kRmsLanes);
  for (size_t i = 0; i < hidden; ++i) {
    residual[i] = rounded<T>(reference::widen(residual[i]) + reference::widen(x[i]));
    const float value = reference::widen(residual[i]);
    lanes[i % kRmsLanes] += value * value;
  }
  const float scale = 1.0f / std::sqrt(reference::tree(lanes) / static_cast<float>(hidden) + eps);
  for (size_t i = 0; i < hidden; ++i) {
    const T normed = rounded<T>(reference::widen(residual[i]) * scale);
    x[i] = rounded<T>(reference::widen(normed) * reference::widen(weight[i]));
  }
}

template <class T>
void expect_same(const T* got, const T* wanted, size_t count, const char* which) {
  for (size_t i = 0; i < count; ++i) {
    const float a = reference::widen(got[i]), b = reference::widen(wanted[i]);
    const bool same =
        std::isnan(b) ? std::isnan(a) : std::memcmp(&got[i], &wanted[i], sizeof(T)) == 0;
    EXPECT(same, which, " ", i, " of ", count, ": ", a, " instead of ", b);
  }
}

/// Memory of exactly `count` elements, which starts `shift` elements behind an aligned address.
template <class T>
class Elements {
 public:
  Elements(const std::vector<char>& bytes, size_t shift)
      : memory_(bytes.size() / sizeof(T) + shift), shift_(shift) {
    std::memcpy(data(), bytes.data(), bytes.size());
  }
  T* data() { return memory_.data() + shift_; }

 private:
  std::vector<T> memory_;
  size_t shift_;
};

template <class T>
void compare(DType dtype, size_t hidden, uint64_t seed,
             std::vector<char> (*input)(DType, uint64_t, uint64_t), bool in_runs) {
  const size_t count = kRows * hidden, shift = seed % 4;
  Elements<T> x(input(dtype, count, seed), shift), residual(input(dtype, count, seed + 1), shift),
      weight(input(dtype, hidden, seed + 2), shift);
  Elements<T> sums = x, wanted_x = x, wanted_residual = residual;
  const float eps = seed % 3 == 0 ? 0 : 1e-5f;
  for (size_t row = 0; row < kRows; ++row) {
    const size_t at = row * hidden;
    expect_row(wanted_x.data() + at, wanted_residual.data() + at, weight.data(), hidden, eps);
  }
  if (in_runs) std::memset(static_cast<void*>(x.data()), 0, count * sizeof(T));
  AddRmsNorm tail(dtype, {x.data(), residual.data(), weight.data(), kRows, hidden, eps});
  EXPECT(!tail.done());
  if (in_runs) {
    size_t next = 0;
    tail.run_behind([&](size_t first, size_t elements) {
      EXPECT(first == next && elements % hidden == 0);
      std::memcpy(static_cast<void*>(x.data() + first), sums.data() + first, elements * sizeof(T));
      next = first + elements;
    });
    EXPECT(next == count);
  } else {
    tail.run_all();
  }
  EXPECT(tail.done());
  expect_same(x.data(), wanted_x.data(), count, "x");
  expect_same(residual.data(), wanted_residual.data(), count, "residual");
}

std::vector<char> special(DType dtype, uint64_t count, uint64_t seed) {
  return special_input(dtype, count, seed);
}

template <class T>
void compare_sizes(DType dtype, uint64_t seed) {
  std::vector<size_t> sizes{1000, 1024, 1025, 4096, 9001};
  for (size_t hidden = 1; hidden <= 130; ++hidden) sizes.push_back(hidden);
  for (const size_t hidden : sizes) {
    seed += 5;
    compare<T>(dtype, hidden, seed, random_input, /*in_runs=*/false);
    compare<T>(dtype, hidden, seed, random_input, /*in_runs=*/true);
    compare<T>(dtype, hidden, seed, special, /*in_runs=*/false);
  }
}

CASE(bits) {
  std::printf("isa %s\n", isa_name());
  compare_sizes<float>(DType::kFloat32, seed);
  compare_sizes<reference::Float16>(DType::kFloat16, seed);
  compare_sizes<reference::BrainFloat16>(DType::kBFloat16, seed);
}

CASE(none) {
  AddRmsNorm tail(DType::kFloat32, {nullptr, nullptr, nullptr, 0, 8, 0});
  tail.run_behind([](size_t, size_t) { EXPECT(false, "there is no row"); });
  EXPECT(tail.done());
  const auto other = [] { add_rms_norm_function(DType::kFloat64); };
  EXPECT(error_of(other) == "no RMS norm of dtype float64", error_of(other));
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
