// A collective operation of all ranks: random inputs, the right results, and where they lie on one
// rank. Communicators of the host and collectives between devices are compared with it.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "coll/call.h"
#include "coll/messages.h"
#include "random_values.h"
#include "reference_plain.h"
#include "reference_tree.h"

namespace fastcomm::testing {

using Bytes = std::vector<char>;

/// An operation and its results: inputs[rank][part], expected[rank][part].
struct Collective {
  Call call;  // without memory
  std::vector<std::vector<Bytes>> inputs;
  std::vector<std::vector<Bytes>> expected;
};

constexpr ReduceOp kOps[] = {ReduceOp::kSum,     ReduceOp::kAvg, ReduceOp::kPremulSum,
                             ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};

inline bool reduces(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter ||
         kind == OpKind::kFusedAllReduce;
}

/// Every rank sends the same to all, as much as it likes.
inline bool sends_any_size(OpKind kind) {
  return kind == OpKind::kAllGatherUneven || kind == OpKind::kAllReduceSparse;
}

/// The definition of every reduction.
inline Bytes reduced(const Call& call, const std::vector<Bytes>& inputs) {
  if (call.op == ReduceOp::kSum || call.op == ReduceOp::kAvg || call.op == ReduceOp::kPremulSum) {
    const int divisor = call.op == ReduceOp::kAvg ? static_cast<int>(inputs.size()) : 1;
    return reference::reduce(call.dtype, call.dtype, inputs, {divisor, call.scale, call.factor});
  }
  return reference::reduce_plain(call.dtype, call.op, inputs);
}

/// What each rank must get, by the definition of every operation.
inline void expect_results(Collective& made) {
  const Call& call = made.call;
  const auto part_of_all = [&](int part) {
    std::vector<Bytes> all;
    for (const auto& parts : made.inputs) all.push_back(parts[part]);
    return all;
  };
  const int size = static_cast<int>(made.inputs.size());
  made.expected.resize(size);
  for (int rank = 0; rank < size; ++rank) {
    const bool there = call.root < 0 || rank == call.root;
    auto& expected = made.expected[rank];
    switch (call.kind) {
      case OpKind::kAllReduce:
      case OpKind::kFusedAllReduce:
      case OpKind::kReduce:
        if (there) expected = {reduced(call, part_of_all(0))};
        break;
      case OpKind::kReduceScatter:
        expected = {reduced(call, part_of_all(rank))};
        break;
      case OpKind::kBroadcast:
        expected = {made.inputs[call.root][0]};
        break;
      case OpKind::kScatter:
        expected = {made.inputs[call.root][rank]};
        break;
      case OpKind::kAllToAll:
        expected = part_of_all(rank);
        break;
      case OpKind::kBarrier:
        break;
      default:
        if (there) expected = part_of_all(0);
    }
  }
}

inline Collective make_collective(OpKind kind, DType dtype, uint64_t count, ReduceOp op, int size,
                                  std::mt19937_64& random) {
  Collective made;
  Call& call = made.call;
  call.kind = kind;
  call.dtype = dtype;
  const bool in_pairs = kind == OpKind::kAllToAll || sends_any_size(kind);
  call.count = kind == OpKind::kBarrier || in_pairs ? 0 : count;
  if (reduces(kind)) call.op = op;
  if (kind == OpKind::kFusedAllReduce) {
    call.op = op == ReduceOp::kAvg ? op : ReduceOp::kSum;
    call.scale = 0.3;
  }
  if (call.op == ReduceOp::kPremulSum) call.factor = 1.0 / 3;
  const bool rooted = kind == OpKind::kReduce || kind == OpKind::kGather ||
                      kind == OpKind::kBroadcast || kind == OpKind::kScatter;
  if (rooted) call.root = static_cast<int>(random() % size);
  const bool in_parts =
      kind == OpKind::kReduceScatter || kind == OpKind::kScatter || kind == OpKind::kAllToAll;
  made.inputs.resize(size);
  for (auto& parts : made.inputs) {
    for (int part = 0; part < (in_parts ? size : 1); ++part) {
      const bool fewer = kind == OpKind::kGatherShards && &parts != &made.inputs[0];
      const bool differ = fewer || in_pairs;
      parts.push_back(random_values(dtype, differ ? random() % (count + 1) : count, random));
    }
  }
  expect_results(made);
  return made;
}

/// This rank's memory for an operation.
struct Placed {
  std::vector<char*> sources;
  std::vector<char*> results;
};

/// The input in whose place a result may lie, or -1.
inline int in_place_of(const Call& call, int rank, int result) {
  switch (call.kind) {
    case OpKind::kAllReduce:
    case OpKind::kFusedAllReduce:
    case OpKind::kReduce:
      return 0;
    case OpKind::kReduceScatter:
      return rank;
    case OpKind::kAllGather:
    case OpKind::kAllGatherUneven:
      return result == rank ? 0 : -1;
    case OpKind::kAllToAll:
      return result == rank ? rank : -1;
    default:
      return -1;
  }
}

/// Gives each input and each result memory by `put(bytes, is_input)`, which returns a copy's place.
/// A broadcast's root has its result where its input is.
template <class Put>
Placed place(const Collective& all, int rank, bool in_place, const Put& put) {
  Placed placed;
  for (const Bytes& part : all.inputs[rank]) placed.sources.push_back(put(part, true));
  for (const Bytes& result : all.expected[rank]) {
    int input = -1;
    if (in_place) input = in_place_of(all.call, rank, static_cast<int>(placed.results.size()));
    if (all.call.kind == OpKind::kBroadcast && all.call.root == rank) input = 0;
    placed.results.push_back(input >= 0 ? placed.sources[input]
                                        : put(Bytes(result.size(), 0x55), false));
  }
  return placed;
}

inline void set_memory(Call& call, const Placed& placed) {
  call.input = placed.sources[0];
  call.inputs.assign(placed.sources.begin(), placed.sources.end());
  call.output = placed.results.empty() ? nullptr : placed.results[0];
  call.outputs.assign(placed.results.begin(), placed.results.end());
}

/// The same as messages, for operations whose sizes are known in pairs.
inline std::shared_ptr<Messages> messages_of(const Collective& all, int rank,
                                             const Placed& placed) {
  const Call& call = all.call;
  const auto& inputs = all.inputs[rank];
  const auto& expected = all.expected[rank];
  const auto flows = [&](int from, int to) {
    if (call.kind == OpKind::kGather) return to == call.root;
    return call.kind != OpKind::kScatter || from == call.root;
  };
  const int size = static_cast<int>(all.inputs.size());
  auto messages = std::make_shared<Messages>(size);
  messages->same_for_all = sends_any_size(call.kind);
  for (int peer = 0; peer < size; ++peer) {
    if (flows(rank, peer)) {  // one input for all, or one each
      const size_t part = peer % inputs.size();
      messages->sends[peer] = {placed.sources[part], inputs[part].size()};
    }
    if (flows(peer, rank)) {
      const size_t part = peer % expected.size();
      messages->receives[peer] = {placed.results[part], expected[part].size()};
    }
  }
  return messages;
}

}  // namespace fastcomm::testing
