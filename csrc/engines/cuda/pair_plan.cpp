#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "engines/cuda/pair_plan.h"

#include <algorithm>

#include "coll/messages.h"
#include "coll/operations.h"
#include "core/error.h"

namespace fastcomm {
namespace {

/// Bytes of a message in one round.
uint64_t share_of(const Call& call, const PeerAreas& areas) {
  const int shares = call.messages->same_for_all ? 1 : areas.size;
  return areas.bytes / shares / kLineBytes * kLineBytes;
}

}  // namespace

bool is_of_pairs(OpKind kind) { return row_of(kind).peers.work == PeerWay::Work::kPairs; }

bool knows_all_rounds(const Call& call, int size) {
  return size == 2 || call.messages->same_for_all;
}

PairSizes pair_sizes(const Call& call, const PeerAreas& areas) {
  const auto size = static_cast<size_t>(areas.size);
  const char* const name = op_kind_name(call.kind);
  FC_CHECK(call.messages != nullptr, name, ": no messages");
  const Messages& messages = *call.messages;
  FC_CHECK(messages.sends.size() == size && messages.receives.size() == size, name,
           ": not the messages of ", size, " ranks");
  FC_CHECK(!messages.place, name, ": sizes that only the sender knows");
  const uint64_t kept = messages.sends[areas.rank].bytes;
  const uint64_t expected = messages.receives[areas.rank].bytes;
  FC_CHECK(kept == expected, name, ": rank ", areas.rank, " sends itself ", kept,
           " bytes and expects ", expected, " of itself");
  const uint64_t share = share_of(call, areas);
  FC_CHECK(share > 0, "areas of ", areas.bytes, " bytes have no room for a part of each of ", size,
           " ranks");
  PairSizes sizes{};
  uint64_t longest = messages.same_for_all ? messages.sends[0].bytes : 0;
  for (int peer = 0; peer < areas.size; ++peer) {
    if (peer == areas.rank) continue;
    sizes.sent[peer] = messages.sends[peer].bytes;
    sizes.expected[peer] = messages.receives[peer].bytes;
    longest = std::max({longest, sizes.sent[peer], sizes.expected[peer]});
  }
  sizes.rounds = std::max<uint64_t>(1, (longest + share - 1) / share);
  return sizes;
}

PeerRound round_of_pairs(const Call& call, const PeerAreas& areas, uint64_t round) {
  const Messages& messages = *call.messages;
  const uint64_t share = share_of(call, areas);
  const uint64_t first = round * share;
  const auto in_area = [&](int reader) { return messages.same_for_all ? 0 : reader * share; };
  PeerRound made;
  for (int step = 1; step <= areas.size; ++step) {
    const int peer = after(areas, step);
    const Messages::Sent& sent = messages.sends[peer];
    const Messages::Expected& expected = messages.receives[peer];
    if (peer == areas.rank) {
      if (round == 0 && sent.bytes != 0 && sent.data != expected.data) {
        made.pull.push_back({expected.data, sent.data, sent.bytes});
      }
      continue;
    }
    const bool staged = messages.same_for_all && !made.stage.empty();
    if (sent.bytes > first && !staged) {
      made.stage.push_back({areas.in[areas.rank] + in_area(peer), sent.data + first,
                            std::min(share, sent.bytes - first)});
    }
    if (expected.bytes > first) {
      made.pull.push_back({expected.data + first, areas.in[peer] + in_area(areas.rank),
                           std::min(share, expected.bytes - first)});
    }
  }
  return made;
}

std::vector<DeviceResult> results_of_pairs(const Call& call) {
  std::vector<DeviceResult> results;
  for (const Messages::Expected& expected : call.messages->receives) {
    results.push_back({expected.data, expected.bytes / dtype_size(call.dtype)});
  }
  return results;
}

}  // namespace fastcomm
#endif
