// A fused reduction within one process: lists of gradients that one thread reaches, with the bits
// of fused_all_reduce on as many ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "coll/gradient_list.h"

namespace fastcomm {

/// Reduces units [begin, end) of `list` into its tensors, and notes their norms. sources[k][t] is
/// term k of tensor t, and may be the tensor itself. Averages divide by the number of sources.
/// Threads may share a list, each with units of its own.
void reduce_units(GradientList& list, const std::vector<std::vector<const char*>>& sources,
                  uint32_t begin, uint32_t end);

/// Notes the norms of units [begin, end) without changing them.
void note_norms(GradientList& list, uint32_t begin, uint32_t end);

/// Reduces a list that is its only source. Residuals count only here, since they are those of one
/// rank.
void reduce_alone(GradientList& list);

}  // namespace fastcomm
