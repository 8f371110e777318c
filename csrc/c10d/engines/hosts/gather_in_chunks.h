// Every rank gets what all give, of any size: chunks on their way.
//
// Each rank sends its message to the ranks in its place, and every host passes on what its ranks
// have got. A host sends (H - 1) times its ranks' messages.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "c10d/engines/hosts/host_exchange.h"

namespace fastcomm {

/// `Parts` says what the ranks give, and where it goes:
///   bytes(rank)               that a rank gives, as all know
///   room(each)                bytes that it needs in the memory of a chunk of `each` a rank
///   own(span, rank, room)     this rank's, from span.first on
///   place(span, rank, room)   where that of a rank goes
///   done(span, rank, room)    once all are there; `rank` is this one
template <class Parts>
struct GatherInChunks {
  using Chunk = HostExchange::Chunk;

  HostCall& call;
  HostInside& inside;
  HostExchange& between;
  const Parts& parts;
  const uint64_t longest, ranks = static_cast<uint64_t>(inside.whole_size());
  /// Bytes of a chunk that each rank gives. All of them are packed where there is a room.
  const uint64_t each = std::max<uint64_t>(
      smaller(longest, between.thresholds().chunk_of(longest* ranks) /
                           (parts.room(1) != 0 ? ranks : static_cast<uint64_t>(inside.size()))),
      1);
  const int own = between.own_rank();

  /// What a rank has of a chunk.
  uint64_t bytes(const Chunk& chunk, int rank) const {
    const uint64_t all = parts.bytes(rank);
    return all <= chunk.span.first ? 0 : smaller(all - chunk.span.first, chunk.span.count);
  }

  void prepare(Chunk& chunk) {
    between.each_other([&](int host) {
      const int rank = between.layout().counterpart(host);
      between.expect(chunk.expected, host, Mail::kResult,
                     parts.place(chunk.span, rank, chunk.memory), bytes(chunk, rank));
    });
  }

  void open(Chunk& chunk) {
    between.compared(call);
    const char* const data = parts.own(chunk.span, own, chunk.memory);
    between.each_other(
        [&](int host) { between.send(chunk.sent, host, Mail::kResult, data, bytes(chunk, own)); });
    pass_on(chunk, between.own(), data);
  }

  void middle(Chunk& chunk) {
    HostExchange::wait(chunk.expected, call);
    between.each_other([&](int host) {
      const int rank = between.layout().counterpart(host);
      pass_on(chunk, host, parts.place(chunk.span, rank, chunk.memory));
    });
  }

  void close(Chunk& chunk) {
    HostExchange::wait(chunk.sent, call);
    parts.done(chunk.span, own, chunk.memory);
  }

  /// What the ranks of `host` give, of which this rank has one.
  void pass_on(const Chunk& chunk, int host, const char* data) const {
    const std::vector<int>& ranks = between.layout().hosts[host];
    const uint64_t given = bytes(chunk, ranks[inside.rank()]);
    bool even = true;
    std::vector<void*> outputs;
    for (const int rank : ranks) {
      even = even && bytes(chunk, rank) == given;
      outputs.push_back(parts.place(chunk.span, rank, chunk.memory));
    }
    if (even) return inside.all_gather(call, DType::kOther, data, given, std::move(outputs));
    auto messages = std::make_shared<Messages>(inside.size());
    messages->same_for_all = true;
    for (int place = 0; place < inside.size(); ++place) {
      messages->sends[place] = {data, given};
      messages->receives[place] = {static_cast<char*>(outputs[place]), bytes(chunk, ranks[place])};
    }
    inside.exchange(call, messages);
  }
};

template <class Parts>
void gather_in_chunks(HostCall& call, HostInside& inside, HostExchange& between,
                      const Parts& parts) {
  uint64_t longest = 0;
  for (int rank = 0; rank < inside.whole_size(); ++rank) {
    longest = std::max(longest, parts.bytes(rank));
  }
  GatherInChunks<Parts> plan{call, inside, between, parts, longest};
  between.begin(call, HostPath::kLong);
  inside.barrier(call);
  between.in_chunks(call, longest, plan.each, parts.room(plan.each), plan);
}

}  // namespace fastcomm
