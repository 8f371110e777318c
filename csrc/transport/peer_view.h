// What an algorithm sees of a group: a trivially copyable view, handed over by value.
//
// Each rank owns one window: memory that every rank of the group can read and (for flags only its
// owner) write. It holds flags, one 64-byte line per channel, and scratch. A channel is an
// independent instance of a schedule: the CPU has one (transport/control_block.h), a CUDA grid one per block.
//
// Flag contract: flag (rank, channel) is written by its owner alone, counts published steps, never
// goes back, and wraps. It is published with release and read with acquire (core/hd.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/hd.h"

namespace fastcomm {

constexpr int kMaxRanks = 64;
constexpr size_t kLineBytes = 64;

struct PeerView {
  int rank = 0;
  int size = 1;
  uint32_t* flags[kMaxRanks] = {};  // first channel's flag of each rank
  char* scratch[kMaxRanks] = {};    // what lies after the flags, aligned to a line

  FC_HD uint32_t* flag(int peer, int channel) const {
    return flags[peer] + static_cast<size_t>(channel) * (kLineBytes / sizeof(uint32_t));
  }
};

/// The contiguous set of ranks that a step waits for.
struct WaitFor {
  int first;
  int count;
};

}  // namespace fastcomm
