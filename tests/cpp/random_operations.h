// Random operations of a communicator, with their memory and their expected results.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "coll/describe_call.h"
#include "coll/messages.h"
#include "dtypes.h"
#include "engines/cpu/communicator.h"
#include "reference_tree.h"

namespace fastcomm::testing {

/// One operation as all ranks see it.
struct Spec {
  OpKind kind;
  DType dtype;
  ReduceOp op;
  uint64_t count;
  int root;
  bool in_place;
  bool async;  // each rank chooses for itself when this is set
  uint64_t seed;
};

inline Spec random_spec(std::mt19937_64& bits, int size) {
  constexpr OpKind kKinds[] = {
      OpKind::kAllReduce,      OpKind::kAllReduce,     OpKind::kBroadcast, OpKind::kAllGather,
      OpKind::kBarrier,        OpKind::kReduceScatter, OpKind::kReduce,    OpKind::kGather,
      OpKind::kScatter,        OpKind::kAllToAll,      OpKind::kAllToAll,  OpKind::kAllGatherUneven,
      OpKind::kAllReduceSparse};
  // None, one, one-shot, a block, several blocks, and odd counts around the limits.
  constexpr uint64_t kCounts[] = {0, 1, 3, 31, 64, 127, 200, 512, 777, 1500};
  Spec spec{};
  spec.kind = kKinds[bits() % std::size(kKinds)];
  spec.dtype = kDTypes[bits() % std::size(kDTypes)];
  spec.op = bits() % 3 == 0 && spec.dtype != DType::kBool ? ReduceOp::kAvg : ReduceOp::kSum;
  if (is_floating(spec.dtype) && bits() % 4 == 0) spec.op = ReduceOp::kPremulSum;
  spec.count = kCounts[bits() % std::size(kCounts)];
  spec.root = static_cast<int>(bits() % size);
  spec.in_place = bits() % 2 == 0;
  spec.async = bits() % 2 == 0;
  spec.seed = bits();
  return spec;
}

/// Memory for a message between guards, at an address that is a multiple of the element size only.
class Message {
 public:
  Message(size_t bytes, size_t element, size_t shift)
      : bytes_(bytes), at_(64 + shift % 7 * element), data_(at_ + bytes + 64, '\x5a') {}
  char* data() { return data_.data() + at_; }
  bool holds(const std::vector<char>& wanted) {
    return wanted.empty() || std::memcmp(data(), wanted.data(), wanted.size()) == 0;
  }
  bool guarded() const {
    const auto guard = [](char c) { return c == '\x5a'; };
    return std::all_of(data_.begin(), data_.begin() + at_, guard) &&
           std::all_of(data_.begin() + at_ + bytes_, data_.end(), guard);
  }

 private:
  size_t bytes_;
  size_t at_;
  std::vector<char> data_;
};

/// One operation of one rank: its memory, and what must be there in the end.
struct Running {
  Spec spec;
  std::vector<Message> messages;  // the input, then the outputs
  std::vector<std::vector<char>> wanted;
  reference::Epilogue last;
  std::shared_ptr<Operation> operation;
  std::atomic<int> finished{0};

  Call prepare(const Spec& wish, int rank, int size) {
    spec = wish;
    const size_t element = dtype_size(spec.dtype);
    const size_t bytes = spec.count * element;
    std::vector<std::vector<char>> inputs;
    for (int peer = 0; peer < size; ++peer) {
      inputs.push_back(random_input(spec.dtype, spec.count, spec.seed + peer));
    }
    Call call;
    call.kind = spec.kind;
    if (spec.kind == OpKind::kBarrier) return call;
    call.dtype = spec.dtype;
    call.count = spec.count;
    const auto message = [&](const char* content) {
      messages.emplace_back(bytes, element, spec.seed + messages.size() + rank);
      if (content != nullptr && bytes != 0) std::memcpy(messages.back().data(), content, bytes);
      return messages.back().data();
    };
    messages.reserve(2 * size + 1);
    if (moves()) {
      prepare_messages(call, rank, size);
      return call;
    }
    if (spec.kind == OpKind::kReduceScatter) {
      set_reduction(call, size);
      prepare_parts(call, rank, size, message);
      return call;
    }
    call.input = message(inputs[rank].data());
    if (spec.kind == OpKind::kReduce) {
      set_reduction(call, size);
      call.root = spec.root;
      const bool is_root = rank == spec.root;
      const auto sum = reference::reduce(spec.dtype, spec.dtype, inputs, last);
      wanted.push_back(is_root && spec.in_place ? sum : inputs[rank]);
      if (is_root) call.output = spec.in_place ? messages[0].data() : message(nullptr);
      if (is_root && !spec.in_place) wanted.push_back(sum);
    } else if (spec.kind == OpKind::kAllReduce) {
      set_reduction(call, size);
      const auto sum = reference::reduce(spec.dtype, spec.dtype, inputs, last);
      call.output = messages[0].data();
      wanted.push_back(spec.in_place ? sum : inputs[rank]);
      if (!spec.in_place) call.output = message(nullptr), wanted.push_back(sum);
    } else if (spec.kind == OpKind::kBroadcast) {
      call.root = spec.root;
      call.output = messages[0].data();
      wanted.push_back(inputs[spec.root]);
    } else {
      wanted.push_back(inputs[rank]);
      for (int peer = 0; peer < size; ++peer) {
        const bool own = spec.in_place && peer == rank;
        call.outputs.push_back(own ? messages[0].data() : message(nullptr));
        if (!own) wanted.push_back(inputs[peer]);
      }
    }
    return call;
  }

  /// Whether its sizes are known in pairs.
  bool moves() const {
    return row_of(spec.kind).algorithms.front().algorithm == Algorithm::kByTable;
  }

  /// Bytes of the message from one rank to another, as both of them know it.
  uint64_t bytes_between(int from, int to) const {
    const uint64_t bytes = spec.count * dtype_size(spec.dtype);
    const auto some = [&](int a, int b) {
      std::mt19937_64 pair(spec.seed + static_cast<uint64_t>(a * kMaxRanks + b));
      return pair() % 4 == 0 ? 0 : pair() % (bytes + 1);
    };
    switch (spec.kind) {
      case OpKind::kGather:
        return to == spec.root ? bytes : 0;
      case OpKind::kScatter:
        return from == spec.root ? bytes : 0;
      case OpKind::kAllToAll:
        return some(from, to);
      default:  // the same to all
        return some(from, kMaxRanks);
    }
  }

  /// Every rank's bytes for each rank, with a seed of its own.
  void prepare_messages(Call& call, int rank, int size) {
    call.count = spec.kind == OpKind::kGather || spec.kind == OpKind::kScatter ? spec.count : 0;
    call.root = call.count == 0 ? -1 : spec.root;
    auto plan = std::make_shared<Messages>(size);
    plan->same_for_all =
        spec.kind == OpKind::kAllGatherUneven || spec.kind == OpKind::kAllReduceSparse;
    const auto content = [&](int from, int to) {
      const int stream = plan->same_for_all ? kMaxRanks : to;
      return random_input(DType::kUInt8, bytes_between(from, to),
                          spec.seed + static_cast<uint64_t>(from * kMaxRanks + stream) * 3);
    };
    const auto message = [&](uint64_t bytes, const std::vector<char>* filled) {
      messages.emplace_back(bytes, 1, spec.seed + messages.size());
      if (filled != nullptr && bytes != 0) {
        std::memcpy(messages.back().data(), filled->data(), bytes);
      }
      return messages.back().data();
    };
    for (int peer = 0; peer < size; ++peer) {
      const auto out = content(rank, peer);
      const bool again = plan->same_for_all && peer > 0;
      plan->sends[peer] = {again ? plan->sends[0].data : message(out.size(), &out), out.size()};
      if (!again) wanted.push_back(out);
      const auto in = content(peer, rank);
      plan->receives[peer] = {message(in.size(), nullptr), in.size()};
      wanted.push_back(in);
    }
    if (spec.kind == OpKind::kAllReduceSparse) {  // the receiver learns of the size
      plan->place = [known = plan->receives](int from, uint64_t bytes) {
        EXPECT(bytes == known[static_cast<size_t>(from)].bytes);
        return known[static_cast<size_t>(from)].data;
      };
      for (auto& each : plan->receives) each = {};
    }
    call.balance = plan->balance(rank);
    call.messages = std::move(plan);
  }

  void set_reduction(Call& call, int size) {
    call.op = spec.op;
    if (spec.op == ReduceOp::kAvg) last.divisor = size;
    if (spec.op == ReduceOp::kPremulSum) last.factor = call.factor = 1.0 / 3;
  }

  /// Every rank's part of each rank's input, with a seed of its own.
  template <class Message>
  void prepare_parts(Call& call, int rank, int size, const Message& message) {
    const auto part = [&](int from, int to) {
      return random_input(spec.dtype, spec.count,
                          spec.seed + static_cast<uint64_t>(from * size + to));
    };
    std::vector<std::vector<char>> own;
    for (int peer = 0; peer < size; ++peer) own.push_back(part(peer, rank));
    const auto sum = reference::reduce(spec.dtype, spec.dtype, own, last);
    for (int peer = 0; peer < size; ++peer) {
      const auto content = part(rank, peer);
      call.inputs.push_back(message(content.data()));
      wanted.push_back(spec.in_place && peer == rank ? sum : content);
    }
    call.output = spec.in_place ? messages[static_cast<size_t>(rank)].data() : message(nullptr);
    if (!spec.in_place) wanted.push_back(sum);
  }

  void check(int rank) {
    EXPECT(operation->done() && operation->error() == nullptr, "rank ", rank);
    EXPECT(!spec.async || finished == 1, "finished ", finished.load(), " times");
    for (size_t i = 0; i < messages.size(); ++i) {
      EXPECT(messages[i].holds(wanted[i]) && messages[i].guarded(), "rank ", rank, ", message ", i,
             " of ", describe_call(operation->header()));
    }
  }
};

}  // namespace fastcomm::testing
