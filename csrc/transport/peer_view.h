// An algorithm's view of a group: trivially copyable, passed by value.
//
// Each rank owns one window: memory that every rank of the group can read and write (flags only by
// their owner). It holds a flag in a line of its own (transport/control_block.h), and scratch.
//
// Flag contract: a flag is written by its owner alone, counts published steps, never goes back, and
// wraps. It is published with release and read with acquire (core/hd.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastcomm {

constexpr int kMaxRanks = 64;
constexpr size_t kLineBytes = 64;

struct PeerView {
  int rank = 0;
  int size = 1;
  uint32_t* flags[kMaxRanks] = {};  // of each rank
  char* scratch[kMaxRanks] = {};    // of each rank, aligned to a line
};

/// The contiguous set of ranks that a step waits for.
struct WaitFor {
  int first;
  int count;
};

}  // namespace fastcomm
