// A fused reduction within one process: lists of gradients that one thread reaches, with the bits that
// fused_all_reduce gives for as many ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "coll/gradient_list.h"

namespace fastcomm {

/// Reduces units [begin, end) of `list`, with what sources[k][t] holds of tensor t, over k, into the
/// list's tensors, and notes their norms. A source may be the tensor itself. Averages divide by the
/// number of sources. Threads may share a list, each with units of its own.
void reduce_units(GradientList& list, const std::vector<std::vector<const char*>>& sources,
                  uint32_t begin, uint32_t end);

/// Notes the norms of units [begin, end) as they are.
void note_norms(GradientList& list, uint32_t begin, uint32_t end);

/// The list is its only source. Residuals are those of one rank, so they count here only.
void reduce_alone(GradientList& list);

}  // namespace fastcomm
