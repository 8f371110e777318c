// Pure arithmetic: division of a list of tensors among ranks, and of a buffer among peers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coll/plan.h"

namespace fastcomm {

/// Divides the tensors, laid end to end, into one run per part, equally long to within a line;
/// calls visit(part, tensor, span) for each piece of a tensor in a part, in order. Pieces start at
/// multiples of `line` elements of their tensor, so parts never share a line, and a list has at
/// most parts - 1 more pieces than tensors. Empty tensors have none.
template <class Visit>
void divide_list(const std::vector<uint64_t>& counts, int parts, uint64_t line,
                 const Visit& visit) {
  uint64_t lines = 0;
  for (const uint64_t count : counts) lines += ceil_div(count, line);
  const auto end_of = [&](int part) {
    const uint64_t n = static_cast<uint64_t>(parts);
    const uint64_t after = static_cast<uint64_t>(part) + 1;
    return lines / n * after + lines % n * after / n;  // lines * after / n without overflow
  };
  int part = 0;
  uint64_t at = 0;  // line in the list
  for (size_t tensor = 0; tensor < counts.size(); ++tensor) {
    uint64_t done = 0;  // elements
    while (done < counts[tensor]) {
      while (end_of(part) <= at) ++part;
      const uint64_t count = smaller((end_of(part) - at) * line, counts[tensor] - done);
      visit(part, tensor, Span{done, count});
      at += ceil_div(count, line);
      done += count;
    }
  }
}

}  // namespace fastcomm
