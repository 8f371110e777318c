// The one place that chooses how lists are copied and summed within a process: for calls of
// fastcomm.comm and for traced ones (ops/library.cpp).
//
// A device is its index, -1 for the CPU. Between slots of the CPU ops/tensor_lists.h does the work,
// between devices ops/device_lists.h. Nothing is returned if neither can: then torch's functions
// have to do it. Errors and threads: as there.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tensors/plain_tensors.h"

namespace fastcomm {

/// Copies of tensors that lie on devices[0], for each of the later devices: result[k][i] is on
/// devices[k + 1].
std::optional<std::vector<TensorList>> routed_copies(const TensorList& tensors,
                                                     const std::vector<int>& devices);

/// The sums of lists, place by place, on `destination`.
std::optional<TensorList> routed_sums(const std::vector<TensorList>& sources, int64_t destination);

}  // namespace fastcomm
