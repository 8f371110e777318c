// A rank's message that lies in pieces, such as a list of gradients, for operations between
// devices: one kernel gathers them into a window, and one scatters the result.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace fastcomm {

/// Elements that lie end to end. They may be float32 if the message's type is float16 or bfloat16:
/// they are rounded to it, and widened from it.
struct MessagePiece {
  const void* from;
  DType from_type;
  void* to;
  DType to_type;
  uint64_t count;
};

/// The message, in order.
using MessagePieces = std::vector<MessagePiece>;

/// The messages of all ranks, at their places in the memory of one.
using ShardPieces = std::vector<MessagePieces>;

}  // namespace fastcomm
