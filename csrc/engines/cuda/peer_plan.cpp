#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "engines/cuda/peer_plan.h"

#include <algorithm>

#include "coll/operations.h"
#include "core/error.h"

namespace fastcomm {
namespace {

/// Everything of one round; offsets in bytes.
class Round {
 public:
  Round(const Call& call, const PeerAreas& areas, uint64_t first, uint64_t count, uint64_t chunk)
      : call_(call),
        areas_(areas),
        first_(first * dtype_size(call.dtype)),
        count_(count),
        bytes_(count * dtype_size(call.dtype)),
        chunk_(chunk * dtype_size(call.dtype)) {}

  PeerRound made() && {
    switch (call_.kind) {
      case OpKind::kAllReduce:
        stage(0, call_.input);
        reduce_slice(/*root=*/-1);
        fetch();
        break;
      case OpKind::kReduce:
        stage(0, call_.input);
        reduce_slice(call_.root);
        if (is_root()) fetch();
        break;
      case OpKind::kReduceScatter:
        each_rank([&](int peer) { stage(peer, call_.inputs[peer]); });
        reduce_part();
        break;
      case OpKind::kAllGather:
        stage(0, call_.input);
        each_rank([&](int peer) { pull(peer, 0, call_.outputs[peer]); });
        break;
      case OpKind::kGather:
        stage(0, call_.input);
        if (is_root()) each_rank([&](int peer) { pull(peer, 0, call_.outputs[peer]); });
        break;
      case OpKind::kBroadcast:
        is_root() ? stage(0, call_.output) : pull(call_.root, 0, call_.output);
        break;
      case OpKind::kScatter:
        if (is_root()) each_rank([&](int peer) { stage(peer, call_.inputs[peer]); });
        pull(call_.root, areas_.rank, call_.output);
        break;
      case OpKind::kAllToAll:
        each_rank([&](int peer) { stage(peer, call_.inputs[peer]); });
        each_rank([&](int peer) { pull(peer, areas_.rank, call_.outputs[peer]); });
        break;
      default:
        break;
    }
    return std::move(round_);
  }

 private:
  bool is_root() const { return call_.root == areas_.rank; }

  template <class Body>
  void each_rank(const Body& body) const {
    for (int peer = 0; peer < areas_.size; ++peer) body(peer);
  }

  void stage(int part, const void* from) {
    round_.stage.push_back(
        {areas_.in[areas_.rank] + part * chunk_, static_cast<const char*>(from) + first_, bytes_});
  }
  void pull(int peer, int part, void* to) {
    round_.pull.push_back(
        {static_cast<char*>(to) + first_, areas_.in[peer] + part * chunk_, bytes_});
  }
  void fetch() {
    round_.fetch.push_back(
        {static_cast<char*>(call_.output) + first_, areas_.out[areas_.rank], bytes_});
  }

  /// Of what everybody has staged, this rank's slice, to the root or to all.
  void reduce_slice(int root) {
    const uint64_t size = dtype_size(call_.dtype);
    const Span slice = slice_of(count_, areas_.size, areas_.rank, kLineBytes / size);
    round_.count = slice.count;
    each_rank([&](int peer) {
      round_.sources.push_back(areas_.in[peer] + slice.first * size);
      if (root < 0 || peer == root) {
        round_.destinations.push_back(areas_.out[peer] + slice.first * size);
      }
    });
  }
  /// Of what everybody has staged, the part that is this rank's.
  void reduce_part() {
    round_.count = count_;
    each_rank([&](int peer) { round_.sources.push_back(areas_.in[peer] + areas_.rank * chunk_); });
    round_.destinations.push_back(static_cast<char*>(call_.output) + first_);
  }

  const Call& call_;
  const PeerAreas& areas_;
  const uint64_t first_;
  const uint64_t count_;
  const uint64_t bytes_;
  const uint64_t chunk_;
  PeerRound round_;
};

/// Parts that a rank stages side by side.
int parts_of(OpKind kind, int size) {
  switch (kind) {
    case OpKind::kReduceScatter:
    case OpKind::kScatter:
    case OpKind::kAllToAll:
      return size;
    case OpKind::kAllReduce:
    case OpKind::kReduce:
    case OpKind::kAllGather:
    case OpKind::kGather:
    case OpKind::kBroadcast:
    case OpKind::kBarrier:
      return 1;
    default:
      throw Error(ErrorCode::kUnsupported,
                  concat(row_of(kind).name, ": not between processes on devices"));
  }
}

/// Elements of a part in one round.
uint64_t chunk_of(const Call& call, const PeerAreas& areas) {
  const uint64_t part = areas.bytes / parts_of(call.kind, areas.size) / kLineBytes * kLineBytes;
  FC_CHECK(part > 0, "areas of ", areas.bytes, " bytes have no room for a part of each of ",
           areas.size, " ranks");
  return part / dtype_size(call.dtype);
}

}  // namespace

uint64_t number_of_rounds(const Call& call, const PeerAreas& areas) {
  const uint64_t chunk = chunk_of(call, areas);
  // An operation without data is a meeting all the same: of those who have called it.
  return std::max<uint64_t>(1, (call.count + chunk - 1) / chunk);
}

PeerRound round_of(const Call& call, const PeerAreas& areas, uint64_t round) {
  const uint64_t chunk = chunk_of(call, areas);
  const uint64_t first = round * chunk;
  if (first >= call.count) return {};
  return Round(call, areas, first, std::min(chunk, call.count - first), chunk).made();
}

std::vector<PeerResult> results_of(const Call& call, int rank) {
  std::vector<PeerResult> results;
  const bool root = call.root < 0 || call.root == rank;
  switch (call.kind) {
    case OpKind::kAllGather:
    case OpKind::kGather:
    case OpKind::kAllToAll:
      if (!root) break;
      for (void* const output : call.outputs) results.push_back({output, call.count});
      break;
    case OpKind::kReduce:
      if (root) results.push_back({call.output, call.count});
      break;
    case OpKind::kBarrier:
      break;
    case OpKind::kBroadcast:
      if (call.root == rank) break;
      [[fallthrough]];
    default:
      results.push_back({call.output, call.count});
  }
  return results;
}

}  // namespace fastcomm
#endif
