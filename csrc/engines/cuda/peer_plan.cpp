#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "engines/cuda/peer_plan.h"

#include <algorithm>
#include <utility>

#include "coll/operations.h"
#include "core/error.h"

namespace fastcomm {
namespace {

using Work = PeerWay::Work;

bool gives(const Call& call, const PeerWay& way, int rank) {
  return !way.from_root || call.root == rank;
}
bool gets(const Call& call, const PeerWay& way, int rank) {
  return !way.to_root || call.root == rank;
}
/// One rank gives all others the same.
bool is_broadcast(const PeerWay& way) { return way.from_root && !way.in_parts; }

/// With two ranks nobody but the root has anything to give.
bool goes_by_slices(const Call& call, const PeerAreas& areas) {
  const uint64_t least = areas.slices_from;
  return is_broadcast(row_of(call.kind).peers) && least != 0 && call.bytes() >= least &&
         areas.size > 2;
}

/// Everything of one round; positions in bytes.
class Round {
 public:
  Round(const Call& call, const PeerAreas& areas, uint64_t first, uint64_t count, uint64_t chunk,
        const OwnTensors& own = {})
      : call_(call),
        way_(row_of(call.kind).peers),
        areas_(areas),
        own_(own),
        element_(dtype_size(call.dtype)),
        first_(first * element_),
        count_(count),
        bytes_(count * element_),
        chunk_(chunk * element_) {}

  PeerRound made() && {
    stage();
    if (way_.work == Work::kReduceSlices) reduce_slice();
    if (way_.work == Work::kReduceParts) reduce_part();
    if (gathers_shards(call_)) {
      pull_shards();
    } else if (goes_by_slices(call_, areas_)) {
      pull_slice();
    } else if (way_.work == Work::kPull && gets(call_, way_, areas_.rank)) {
      pull();
    }
    return std::move(round_);
  }

  /// All of it, if it fits.
  PeerRound made_at_once() && {
    stage();
    if (way_.work == Work::kReduceParts) reduce_part();
    const bool gets_it = gets(call_, way_, areas_.rank);
    if (way_.work == Work::kReduceSlices && gets_it) reduce_part();
    if (way_.work == Work::kPull && gets_it) pull();
    return std::move(round_);
  }

 private:
  /// The part for `rank` of the data that this rank gives.
  const char* given(int rank) const {
    const void* const whole = call_.input != nullptr ? call_.input : call_.output;
    return static_cast<const char*>(way_.in_parts ? call_.inputs[rank] : whole) + first_;
  }
  /// The place of that part in the window of rank `giver`.
  char* staged(int giver, int rank) const {
    return areas_.in[giver] + (way_.in_parts ? rank * chunk_ : 0);
  }

  void stage() {
    if (!gives(call_, way_, areas_.rank) || own_.given != 0) return;
    const MessagePieces* const pieces =
        gathers_shards(call_) ? &(*call_.shards)[areas_.rank] : call_.pieces.get();
    if (pieces != nullptr) {
      round_.gather = {{pieces, first_ / element_, count_, areas_.in[areas_.rank]}};
      return;
    }
    for (int part = 0; part < (way_.in_parts ? areas_.size : 1); ++part) {
      round_.stage.push_back({staged(areas_.rank, part), given(part), bytes_});
    }
  }

  /// For a rank that has no more, a span is longer than its pieces.
  void pull_shards() {
    for (int step = 1; step < areas_.size; ++step) {
      const int peer = after(areas_, step);
      const MessagePieces& pieces = (*call_.shards)[peer];
      round_.pull_shards.push_back({&pieces, first_ / element_, count_, areas_.in[peer]});
    }
  }

  void pull() {
    for (int step = 1; step <= areas_.size; ++step) {
      const int peer = after(areas_, step);
      if (!gives(call_, way_, peer)) continue;
      void* const whole = way_.from_root ? call_.output : call_.outputs[peer];
      // This rank's gift to itself stays in place; nothing moves if it is there already.
      const bool own = peer == areas_.rank;
      const char* const from = own ? given(peer) : staged(peer, areas_.rank);
      char* const to = static_cast<char*>(whole) + first_;
      if (own_.finds && from == to) continue;
      round_.pull.push_back({to, from, bytes_});
      find({from, in_tensor(areas_.rank), own ? -1 : peer, /*is_result=*/false});
    }
  }

  /// Takes this rank's slice of the root's data, from which all others fetch it.
  void pull_slice() {
    const Span slice = slice_of_rank(areas_.rank);
    const uint64_t at = slice.first * element_;
    const bool own = call_.root == areas_.rank;
    if (slice.count != 0) {
      const char* const from = (own ? given(call_.root) : staged(call_.root, areas_.rank)) + at;
      round_.pull.push_back({areas_.out[areas_.rank] + at, from, slice.count * element_});
      find({from, in_tensor(areas_.rank) + at, own ? -1 : call_.root, /*is_result=*/false});
    }
    if (!own) fetch_slices();
  }

  /// The part of this round that a rank reduces, or takes from the root, for all.
  Span slice_of_rank(int rank) const {
    return slice_of(count_, areas_.size, rank, kLineBytes / element_);
  }

  /// Bytes from the start of a rank's tensor to its data for `rank` in this round.
  uint64_t in_tensor(int rank) const { return first_ + (way_.in_parts ? rank * call_.bytes() : 0); }
  void find(const PeerEnd& end) {
    if (own_.finds) round_.ends.push_back(end);
  }

  /// Reduces this rank's slice of all staged data, for every rank that gets it.
  void reduce_slice() {
    const Span slice = slice_of_rank(areas_.rank);
    const uint64_t at = slice.first * element_;
    round_.count = slice.count;
    for (int peer = 0; peer < areas_.size; ++peer) {
      round_.sources.push_back(areas_.in[peer] + at);
      find({areas_.in[peer] + at, first_ + at, peer, /*is_result=*/false});
    }
    for (int step = 0; step < areas_.size; ++step) {
      const int peer = after(areas_, step);
      if (areas_.pushes ? !gets(call_, way_, peer) : step != 0) continue;
      round_.destinations.push_back(areas_.out[peer] + at);
      find({areas_.out[peer] + at, first_ + at, peer, /*is_result=*/true});
    }
    if (!gets(call_, way_, areas_.rank) || own_.result != 0) return;
    areas_.pushes ? fetch({0, count_}, areas_.rank) : fetch_slices();
  }
  void fetch_slices() {
    for (int step = 1; step <= areas_.size; ++step) {
      const int peer = after(areas_, step);
      fetch(slice_of_rank(peer), peer);
    }
  }
  /// Elements of this round, out of the "out" of a rank.
  void fetch(const Span& part, int peer) {
    if (part.count == 0) return;
    const uint64_t from = part.first * element_;
    char* const there = areas_.out[peer] + from;
    if (call_.pieces != nullptr) {
      round_.scatter.push_back(
          {call_.pieces.get(), first_ / element_ + part.first, part.count, there});
      return;
    }
    char* const to = static_cast<char*>(call_.output) + first_ + from;
    round_.fetch.push_back({to, there, part.count * element_});
  }
  /// Reduces this rank's part of all staged data.
  void reduce_part() {
    round_.count = count_;
    for (int peer = 0; peer < areas_.size; ++peer) {
      round_.sources.push_back(staged(peer, areas_.rank));
      find({staged(peer, areas_.rank), in_tensor(areas_.rank), peer, /*is_result=*/false});
    }
    char* const to = static_cast<char*>(call_.output) + first_;
    round_.destinations.push_back(to);
    find({to, 0, -1, /*is_result=*/true});
  }

  const Call& call_;
  const PeerWay& way_;
  const PeerAreas& areas_;
  const OwnTensors& own_;
  const uint64_t element_;
  const uint64_t first_;
  const uint64_t count_;
  const uint64_t bytes_;
  const uint64_t chunk_;
  PeerRound round_;
};

/// Elements of a part in one round.
uint64_t chunk_of(const Call& call, const PeerAreas& areas) {
  const OperationRow& row = row_of(call.kind);
  if (row.peers.work == Work::kNone) {
    throw Error(ErrorCode::kUnsupported,
                concat(op_kind_name(row.kind), ": not between processes on devices"));
  }
  const int parts = row.peers.in_parts ? areas.size : 1;
  const uint64_t part = areas.bytes / parts / kLineBytes * kLineBytes;
  FC_CHECK(part > 0, "areas of ", areas.bytes, " bytes have no room for a part of each of ",
           areas.size, " ranks");
  return part / dtype_size(call.dtype);
}

/// Bytes from one part in a slot to the next: aligned to a pack.
uint64_t stride_of(const Call& call) { return (call.bytes() + 15) / 16 * 16; }

}  // namespace

bool is_short(const Call& call, int size, uint64_t slot_bytes) {
  const PeerWay& way = row_of(call.kind).peers;
  const bool has_none = way.work == Work::kNone || way.work == Work::kPairs;
  if (has_none || slot_bytes == 0 || gathers_shards(call)) return false;
  // Bytes that one rank reads.
  const int givers = is_broadcast(way) ? 1 : size;
  return call.bytes() <= slot_bytes && stride_of(call) * givers <= slot_bytes;
}

PeerRound short_round_of(const Call& call, const PeerAreas& slots) {
  if (call.count == 0) return {};
  return Round(call, slots, 0, call.count, stride_of(call) / dtype_size(call.dtype)).made_at_once();
}

uint64_t number_of_rounds(const Call& call, const PeerAreas& areas) {
  const uint64_t chunk = chunk_of(call, areas);
  // An operation without data is still a meeting of its callers.
  return std::max<uint64_t>(1, (call.count + chunk - 1) / chunk);
}

PeerRound round_of(const Call& call, const PeerAreas& areas, uint64_t round,
                   const OwnTensors& own) {
  const uint64_t chunk = chunk_of(call, areas);
  const uint64_t first = round * chunk;
  if (first >= call.count) return {};
  return Round(call, areas, first, std::min(chunk, call.count - first), chunk, own).made();
}

bool moves_data(const Call& call) {
  const Work work = row_of(call.kind).peers.work;
  return work != Work::kNone && work != Work::kMeet && work != Work::kPairs && call.count != 0;
}

bool gathers_shards(const Call& call) { return row_of(call.kind).peers.of_shards; }

PeerTensor given_of(const Call& call, int rank, int size) {
  const PeerWay& way = row_of(call.kind).peers;
  if (!gives(call, way, rank) || call.pieces != nullptr) return {nullptr, 0};
  if (!way.in_parts) return {call.input != nullptr ? call.input : call.output, call.bytes()};
  const auto* const first = static_cast<const char*>(call.inputs[0]);
  for (int part = 0; part < size; ++part) {
    if (call.inputs[part] != first + part * call.bytes()) return {nullptr, 0};
  }
  if (call.bytes() % kPlaceAlignment != 0) return {nullptr, 0};
  return {first, size * call.bytes()};
}

PeerTensor shared_result_of(const Call& call, int rank) {
  const PeerWay& way = row_of(call.kind).peers;
  const bool slices = way.work == Work::kReduceSlices && gets(call, way, rank);
  if (!slices || call.pieces != nullptr) return {nullptr, 0};
  return {call.output, call.bytes()};
}

std::vector<DeviceResult> results_of(const Call& call, int rank) {
  const PeerWay& way = row_of(call.kind).peers;
  const bool is_given = is_broadcast(way) && gives(call, way, rank);
  if (call.pieces != nullptr || gathers_shards(call)) return {};
  if (way.work == Work::kMeet || is_given || !gets(call, way, rank)) return {};
  if (way.work != Work::kPull || way.from_root) return {{call.output, call.count}};
  std::vector<DeviceResult> results;
  for (void* const output : call.outputs) results.push_back({output, call.count});
  return results;
}

}  // namespace fastcomm
#endif
