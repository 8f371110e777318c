// Lists of CPU tensors, copied, summed and compared in one pass over the memory: no flat buffers.
//
// A result's tensors lie in one block of memory (core/host_cache.h), each with its own storage and
// version counter; the block is given back when the last of them is gone. Sums by torch, of dtypes
// without a kernel or of more than kMaxRanks lists, have memory of their own. A result has the
// strides that torch.empty_like gives for its (first) source. Nothing here is seen by autograd.
// Work is divided among torch's intra-op threads.
//
// Cost: a copy reads and writes each byte once; a sum reads every source once and writes once.
#pragma once

#include <cstdint>
#include <vector>

#include "tensors/plain_tensors.h"

namespace fastcomm {

/// True if all are real tensors in the CPU's memory (has_memory); they may have gaps.
bool are_plain_cpu(const TensorList& tensors);

/// `copies` copies of every tensor: result[copy][i].
std::vector<TensorList> copy_lists(const TensorList& tensors, int64_t copies);

/// result[i]: the sum of sources[0][i], sources[1][i], ..., in the order of the fixed tree
/// (core/numeric.h), in the accumulator of the dtype, rounded once. Raises Error(kInvalidArgument)
/// unless the lists have the same length, and tensors of one place the same shape and dtype.
TensorList sum_lists(const std::vector<TensorList>& sources);

/// Makes every copies[copy][i] equal to tensors[i], bit by bit. Returns the number of bytes
/// written: all of a piece of 16 KiB in which any differ. A copy of another form, or whose memory
/// is still held elsewhere (such as by an autograd graph), is replaced instead of written to.
/// Copies come from copy_lists. Raises Error(kInvalidArgument) unless all lists have the same
/// length.
int64_t refresh_lists(const TensorList& tensors, std::vector<TensorList>& copies);

}  // namespace fastcomm
