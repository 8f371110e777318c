// The operations, one row each: all code that depends on a call's operation reads this table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coll/call.h"
#include "coll/in_place.h"
#include "coll/plan.h"
#include "coll/schedules.h"
#include "core/types.h"
#include "kernels/reduce_cpu.h"
#include "transport/peer_view.h"

namespace fastcomm {

/// One way to carry out an operation.
struct AlgorithmRow {
  Algorithm algorithm;
  /// The number of messages that a payload must hold in a group of `size` ranks; nullptr: no limit.
  int (*messages)(int size);
  AnySchedule (*schedule)(const Call& call, const PeerView& peers, const ScratchLayout& layout,
                          uint64_t sequence);
  const InPlace* in_place = nullptr;
  /// Bytes that all ranks together copy out of slots to their tensors, as far as this rank knows;
  /// nullptr: none, or few.
  uint64_t (*copied_out)(const Call& call, int size) = nullptr;

  bool may_be_in_place(uint64_t bytes) const {
    return in_place != nullptr && bytes >= in_place->least_bytes;
  }
};

/// The way in which an operation moves data between ranks whose devices reach each other's memory;
/// the resulting plan is in engines/cuda/peer_plan.h.
struct PeerWay {
  enum class Work : uint8_t {
    kNone,          // there is no way
    kMeet,          // ranks meet, nothing moves
    kReduceSlices,  // each rank reduces a slice of all inputs, for all receivers
    kReduceParts,   // each rank reduces its own part
    kPull,          // each rank takes the data that others give it
    kPairs,         // the same, with sizes known in pairs (Call::messages)
  };
  Work work = Work::kNone;
  bool in_parts = false;   // a giver has one part per rank; else the same for all
  bool from_root = false;  // only the root gives
  bool to_root = false;    // only the root gets
  bool of_shards = false;  // every rank has a place for the data given (Call::shards)
};

/// The way in which an operation is composed of what hosts do (c10d/engines/hosts).
enum class HostWay : uint8_t {
  kNone,          // it is not
  kSum,           // every rank gets the sum
  kSumToRoot,     // the root gets it
  kSumParts,      // every rank gets its part of it
  kSumLists,      // every rank gets the sums of many tensors (Call::gradients)
  kGather,        // every rank gets what all give
  kGatherUneven,  // the same, of unequal sizes (Call::messages)
  kGatherShards,  // the same, of many tensors
  kSpread,        // every rank gets what the root gives
  kExchange,      // messages, with sizes known in pairs
  kMeet,          // nothing moves
  kMessage,       // from rank to rank, if they are on one host
};

struct OperationRow {
  OpKind kind;
  std::vector<AlgorithmRow> algorithms;  // the first that fits
  /// Work of a group of one rank; nullptr: nothing.
  void (*alone)(const Call& call) = nullptr;
  bool reduces = false;     // messages of one type, which a kernel can reduce
  bool takes_list = false;  // takes a list of gradients, or of parameters
  bool has_detail = false;  // the header does not describe it in full (Call::detail)
  bool has_data = true;
  bool may_be_short = false;  // a call may need nothing but its ShortCall
  bool counted = true;  // the header's count is the number of elements, the same on every rank
  PeerWay peers{};
  HostWay hosts = HostWay::kNone;
  std::string title{};  // for a profiler: "fastcomm:all_reduce". c10d's title if it has one
};

const OperationRow& row_of(OpKind kind);

/// The reduction of a call's elements; nullptr if nothing is reduced, or several types are.
ReduceFunction reduction_of(const Call& call);

}  // namespace fastcomm
