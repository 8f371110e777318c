// Random operations of a communicator, with their memory and their expected results.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "coll/describe_call.h"
#include "coll/operations.h"
#include "collective.h"
#include "dtypes.h"
#include "engines/cpu/communicator.h"

namespace fastcomm::testing {

/// One operation as all ranks see it.
struct Drawn : Collective {
  bool in_place;
  bool async;  // each rank chooses for itself when this is set
  uint64_t shift;
};

inline Drawn draw(std::mt19937_64& bits, int size) {
  constexpr OpKind kKinds[] = {
      OpKind::kAllReduce,      OpKind::kAllReduce,     OpKind::kBroadcast, OpKind::kAllGather,
      OpKind::kBarrier,        OpKind::kReduceScatter, OpKind::kReduce,    OpKind::kGather,
      OpKind::kScatter,        OpKind::kAllToAll,      OpKind::kAllToAll,  OpKind::kAllGatherUneven,
      OpKind::kAllReduceSparse};
  // None, one, one-shot, a block, several blocks, and odd counts around the limits.
  constexpr uint64_t kCounts[] = {0, 1, 3, 31, 64, 127, 200, 512, 777, 1500};
  const OpKind kind = kKinds[bits() % std::size(kKinds)];
  const DType dtype = kDTypes[bits() % std::size(kDTypes)];
  ReduceOp op = kOps[bits() % std::size(kOps)];
  if (why_no_reduction(dtype, op) != nullptr) op = ReduceOp::kSum;
  const uint64_t count = kCounts[bits() % std::size(kCounts)];
  return {make_collective(kind, dtype, count, op, size, bits), bits() % 2 == 0, bits() % 2 == 0,
          bits()};
}

/// Memory between guards, at an address that is a multiple of the element size only.
class Guarded {
 public:
  Guarded(const Bytes& content, size_t element, size_t shift)
      : wanted(content), at_(64 + shift % 7 * element), data_(at_ + content.size() + 64, '\x5a') {
    std::copy(content.begin(), content.end(), data_.begin() + at_);
  }
  char* data() { return data_.data() + at_; }
  bool is_right() const {
    const auto guard = [](char c) { return c == '\x5a'; };
    const auto begin = data_.begin() + at_, end = begin + wanted.size();
    return std::equal(begin, end, wanted.begin()) && std::all_of(data_.begin(), begin, guard) &&
           std::all_of(end, data_.end(), guard);
  }

  Bytes wanted;

 private:
  size_t at_;
  Bytes data_;
};

/// One operation of one rank: its memory, and what must be there in the end.
struct Running {
  std::deque<Guarded> memory;  // the inputs, then the results
  std::shared_ptr<Operation> operation;
  bool async = false;
  std::atomic<int> finished{0};

  Call prepare(const Drawn& all, int rank) {
    Call call = all.call;
    if (call.kind == OpKind::kBarrier) return call;
    const Placed placed = place(all, rank, all.in_place, [&](const Bytes& content, bool) {
      memory.emplace_back(content, dtype_size(call.dtype), all.shift + memory.size() + rank);
      return memory.back().data();
    });
    for (size_t i = 0; i < placed.results.size(); ++i) {
      const auto there = [&](Guarded& each) { return each.data() == placed.results[i]; };
      std::find_if(memory.begin(), memory.end(), there)->wanted = all.expected[rank][i];
    }
    if (row_of(call.kind).algorithms.front().algorithm != Algorithm::kByTable) {
      set_memory(call, placed);
      return call;
    }
    call.messages = messages_of(all, rank, placed);
    if (call.kind == OpKind::kAllReduceSparse) {  // the receiver learns of the size
      auto& receives = call.messages->receives;
      call.messages->place = [known = receives](int from, uint64_t bytes) {
        EXPECT(bytes == known[static_cast<size_t>(from)].bytes);
        return known[static_cast<size_t>(from)].data;
      };
      for (auto& each : receives) each = {};
    }
    call.balance = call.messages->balance(rank);
    return call;
  }

  void check(int rank) const {
    EXPECT(operation->done() && operation->error() == nullptr, "rank ", rank);
    EXPECT(!async || finished == 1, "finished ", finished.load(), " times");
    for (size_t i = 0; i < memory.size(); ++i) {
      EXPECT(memory[i].is_right(), "rank ", rank, ", memory ", i, " of ",
             describe_call(operation->header()));
    }
  }
};

}  // namespace fastcomm::testing
