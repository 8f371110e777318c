// Runs of memory in a row, as if they were one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "coll/plan.h"

namespace fastcomm {

/// `Run` has a member `count`, in any unit.
template <class Run>
class FlatRuns {
 public:
  void add(const Run& run) {
    if (run.count == 0) return;
    starts_.push_back(count_);
    runs_.push_back(run);
    count_ += run.count;
  }
  uint64_t count() const { return count_; }
  /// Calls visit(run, part, at) for what each run has of `span`: the part counts from the start of
  /// the run, and lies `at` behind the start of the span.
  template <class Visit>
  void each(const Span& span, const Visit& visit) const {
    const uint64_t end = span.first + span.count;
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), span.first);
    size_t i = next == starts_.begin() ? 0 : static_cast<size_t>(next - starts_.begin()) - 1;
    for (; i < runs_.size() && starts_[i] < end; ++i) {
      const uint64_t first = std::max(span.first, starts_[i]);
      const uint64_t last = smaller(end, starts_[i] + runs_[i].count);
      if (first < last) visit(runs_[i], Span{first - starts_[i], last - first}, first - span.first);
    }
  }

 private:
  std::vector<Run> runs_;
  std::vector<uint64_t> starts_;
  uint64_t count_ = 0;
};

}  // namespace fastcomm
