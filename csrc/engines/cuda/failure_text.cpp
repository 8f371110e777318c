#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "engines/cuda/failure_text.h"

#include "coll/call.h"
#include "core/cuda_host.h"
#include "core/error.h"
#include "engines/cuda/pair_plan.h"

namespace fastcomm {
namespace {

/// ", rank 2 has not come"
std::string missing_text(const MeetingRecord& record) {
  std::string text;
  for (int peer = 0; peer < kMaxDeviceRanks; ++peer) {
    if (record.wait.missing >> peer & 1) text += concat(", rank ", peer, " has not come");
  }
  return text;
}

/// "rank 0 sends 16 bytes to rank 2, which expects 8" (engines/cuda/pairs.h); "" where the two fit.
std::string pair_text(const CallHeader& own, int rank, const CallHeader& other, int peer) {
  const auto text = [](int from, uint64_t sent, int to, uint64_t expected) {
    return concat("rank ", from, " sends ", sent, " bytes to rank ", to, ", which expects ",
                  expected);
  };
  if (own.where != other.form) return text(rank, own.where, peer, other.form);
  if (own.form != other.where) return text(peer, other.where, rank, own.form);
  return "";
}

std::string mismatch_text(const MeetingRecord& record, int rank) {
  const int peer = record.wait.peer;
  const std::string own = describe_call(record.own), other = describe_call(record.other);
  if (same_call(record.own, record.other) && is_of_pairs(static_cast<OpKind>(record.own.kind))) {
    return concat(own, ": ", pair_text(record.own, rank, record.other, peer));
  }
  return concat(
      "rank ", rank, " called ", own, ", rank ", peer, " called ",
      other == own ? "the same with tensors of other shapes or types, or other options" : other);
}

}  // namespace

std::string describe_failure(const MeetingRecord& record, int rank) {
  // Acquire: the rest of the record is complete once this is there.
  const auto why = static_cast<WaitFailure>(load_flag(&record.wait.failure));
  if (why == WaitFailure::kNone) return "";
  const std::string call = describe_call(record.own);
  switch (why) {
    case WaitFailure::kNone:
      return "";
    case WaitFailure::kTimeout:
      return concat(call, ": rank ", rank, " has waited in vain", missing_text(record));
    case WaitFailure::kAborted:
      return concat(call, ": rank ", rank, " was told to give up");
    case WaitFailure::kMismatch:
      return mismatch_text(record, rank);
    case WaitFailure::kPeerFailed:
      return concat(call, ": rank ", record.wait.peer, " has given up", missing_text(record));
  }
  return "";
}

}  // namespace fastcomm
#endif
