// The tail of a layer that is cut over ranks, on the CPU: a residual takes the sum, and the sum's
// place takes the residual's norm times a weight, row by row. One set of loops per instruction set
// (kernels/isa.h).
//
// Of a row of `hidden` elements, each of one type, in fp32:
//
//   residual  = round(residual + x)
//   mean      = the sum of residual * residual, divided by `hidden`
//   scale     = 1 / sqrt(mean + eps)
//   x         = round(round(residual * scale) * weight)
//
// The squares are those of the rounded residual. Element i lies in lane i mod kRmsLanes; a lane is
// summed in order, and lanes are joined by the fixed tree of core/numeric.h. `round` is to the type
// of the row, to nearest even. So the bits are the same on every machine, but for a NaN's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/types.h"

namespace fastcomm {

// This number is part of the order that fixes the bits.
constexpr size_t kRmsLanes = 32;

struct RmsRows {
  void* x;         // rows: sums, then results
  void* residual;  // as many rows
  const void* weight;
  size_t rows;
  size_t hidden;  // elements of a row, and of the weight
  float eps;
};

using AddRmsNormFunction = void (*)(const RmsRows&);

/// The function for fp32, fp16 or bf16. Raises Error(kUnsupported) for other types.
AddRmsNormFunction add_rms_norm_function(DType dtype);

/// The tail of a call's sum. Who has summed rows may run it over them, and says so.
class AddRmsNorm {
 public:
  AddRmsNorm(DType dtype, const RmsRows& rows)
      : rows_(rows), function_(add_rms_norm_function(dtype)), element_(dtype_size(dtype)) {}

  size_t hidden() const { return rows_.hidden; }
  float eps() const { return rows_.eps; }
  /// True once all rows are done.
  bool done() const { return done_; }

  /// Calls sum(first, count) for runs of elements, in whole rows that stay in the first-level
  /// cache, and ends each.
  template <class Sum>
  void run_behind(const Sum& sum) {
    const size_t row = rows_.hidden * element_;
    const size_t some = row == 0 || row > kRunBytes ? 1 : kRunBytes / row;
    for (size_t first = 0; first < rows_.rows; first += some) {
      const size_t count = rows_.rows - first < some ? rows_.rows - first : some;
      sum(first * rows_.hidden, count * rows_.hidden);
      run(first, count);
    }
    done_ = true;
  }
  /// Ends all rows, which are summed.
  void run_all() {
    run(0, rows_.rows);
    done_ = true;
  }

 private:
  static constexpr size_t kRunBytes = 8 * 1024;

  void run(size_t first, size_t count) const {
    const size_t at = first * rows_.hidden * element_;
    RmsRows part = rows_;
    part.x = static_cast<char*>(rows_.x) + at;
    part.residual = static_cast<char*>(rows_.residual) + at;
    part.rows = count;
    function_(part);
  }

  RmsRows rows_;
  AddRmsNormFunction function_;
  size_t element_;
  bool done_ = false;
};

}  // namespace fastcomm
