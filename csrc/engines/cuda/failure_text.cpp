#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "engines/cuda/failure_text.h"

#include <vector>

#include "coll/call.h"
#include "coll/describe_call.h"
#include "coll/unlike.h"
#include "core/call_site.h"
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

/// "rank 0 sends 16 bytes to rank 2, which expects 8" (engines/cuda/pairs.h); "" if the two fit.
std::string pair_text(const CallHeader& own, int rank, const CallHeader& other, int peer) {
  const auto text = [](int from, uint64_t sent, int to, uint64_t expected) {
    return concat("rank ", from, " sends ", sent, " bytes to rank ", to, ", which expects ",
                  expected);
  };
  if (own.where != other.form) return text(rank, own.where, peer, other.form);
  if (own.form != other.where) return text(peer, other.where, rank, own.form);
  return "";
}

DeviceFailure mismatch_of(const MeetingRecord& record, int rank, int size,
                          const std::string& site) {
  const int peer = record.wait.peer;
  const CallHeader& own = record.own;
  const CallHeader& other = record.calls[peer];
  if (same_call(own, other) && is_of_pairs(static_cast<OpKind>(own.kind))) {
    return {concat(describe_call(own), at_site(site), ": ", pair_text(own, rank, other, peer)), -1};
  }
  std::vector<const CallHeader*> headers(size);
  for (int each = 0; each < size; ++each) {
    if (each == rank) headers[each] = &own;
    if (record.called >> each & 1) headers[each] = &record.calls[each];
  }
  const Unlike unlike = tell_unlike(headers, [&](int each) {
    const std::string call = describe_call(*headers[each]);
    if (each == rank) return call + at_site(site);
    return call == describe_call(own) && !same_call(*headers[each], own)
               ? call + " with tensors of other shapes or types, or other options"
               : call;
  });
  return {unlike.text, unlike.odd};
}

}  // namespace

DeviceFailure describe_failure(const MeetingRecord& record, int rank, int size,
                               const std::string& site) {
  // Acquire: the rest of the record is complete once this is there.
  const auto why = static_cast<WaitFailure>(load_flag(&record.wait.failure));
  if (why == WaitFailure::kNone) return {"", -1};
  const std::string call = describe_call(record.own) + at_site(site);
  switch (why) {
    case WaitFailure::kNone:
      break;
    case WaitFailure::kTimeout:
      return {concat(call, ": rank ", rank, " has waited in vain", missing_text(record)),
              record.wait.peer};
    case WaitFailure::kAborted:
      return {concat(call, ": rank ", rank, " was told to give up"), -1};
    case WaitFailure::kMismatch:
      return mismatch_of(record, rank, size, site);
    case WaitFailure::kPeerFailed:
      return {concat(call, ": rank ", record.wait.peer, " has given up", missing_text(record)),
              record.wait.peer};
    case WaitFailure::kReplays:
      return {
          concat(call, ": two graphs with operations of this group were replayed at once on rank ",
                 rank, ". Replay them on one stream, or order the streams by events"),
          rank};
  }
  return {"", -1};
}

}  // namespace fastcomm
#endif
