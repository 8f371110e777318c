// A long sum over several hosts, of one tensor or of many: chunks on their way (host_sum.h).
#pragma once

#include <utility>
#include <vector>

#include "c10d/engines/hosts/host_exchange.h"
#include "c10d/engines/hosts/partial_sum.h"

namespace fastcomm {

/// Part `index` of `parts`, which differ by an element at most.
inline Span part_of(uint64_t count, int parts, int index) {
  const auto bound = [&](int at) {
    return count * static_cast<uint64_t>(at) / static_cast<uint64_t>(parts);
  };
  return {bound(index), bound(index + 1) - bound(index)};
}

/// The host's partial of this rank's slice of a span. `terms` are all of it, as partials.
inline void add_slices(HostCall& call, const PartialSum& sum, HostInside& inside, const Span& span,
                       const void* terms, void* partial) {
  const EqualSlices cuts(span, inside.size());
  std::vector<const void*> inputs;
  for (int rank = 0; rank < inside.size(); ++rank) {
    const uint64_t first = cuts.first(rank) - span.first;
    inputs.push_back(static_cast<const char*>(terms) + first * sum.partial_size());
  }
  inside.reduce_scatter(call, sum, std::move(inputs), cuts.length, partial);
}

/// All ranks of the host get each other's slices of a span's results, in order at `target`.
inline void gather_slices(HostCall& call, const PartialSum& sum, HostInside& inside,
                          const Span& span, const void* result, char* target) {
  const EqualSlices cuts(span, inside.size());
  std::vector<void*> outputs;
  for (int rank = 0; rank < inside.size(); ++rank) {
    outputs.push_back(target + (cuts.first(rank) - span.first) * sum.size());
  }
  inside.all_gather(call, sum.type, result, cuts.length, std::move(outputs));
}

/// The ends of a sum of one tensor.
struct OneTensor {
  const Call& call;
  const PartialSum& sum;

  uint64_t count() const { return call.count; }
  uint64_t room(uint64_t each) const { return sum.widens() ? each : 0; }
  bool needs_agreement() const { return false; }
  const void* terms(const Span& span, char* room) const {
    const auto* input = static_cast<const char*>(call.input) + span.first * sum.size();
    return sum.widened(input, span.count, room);
  }
  char* target(const Span& span, char*) const {
    return static_cast<char*>(call.output) + span.first * sum.size();
  }
  void done(const Span&, char*) const {}
};

/// Every rank gets the sum. `Ends` says where terms come from and results go to:
///   count()             elements
///   room(each)          bytes that it needs in the memory of a chunk of `each` bytes of partials
///   needs_agreement()   true if terms() writes to the user's memory
///   terms(span, room)   the terms, as partials
///   target(span, room)  the place of the results
///   done(span, room)    once they are there
/// Memory of a chunk: that room; the partial of this rank's slice; one for each host; the result.
template <class Ends>
struct SumInChunks {
  using Chunk = HostExchange::Chunk;

  HostCall& call;
  const PartialSum& sum;
  Ends ends;
  HostInside& inside;
  HostExchange& between;
  /// Elements of a chunk, and bytes that its parts take.
  const uint64_t each =
      between.thresholds().chunk_of(ends.count() * sum.partial_size()) / sum.partial_size();
  const uint64_t wide =
      round_up(ceil_div(smaller(each, ends.count()), inside.size()) * sum.partial_size(), 64);
  /// Slices are exchanged as a whole.
  const bool whole = between.num_hosts() == 2 && sum.travels == sum.type;
  const uint64_t hosts = static_cast<uint64_t>(between.num_hosts());
  const uint64_t part_wide = whole ? wide : round_up(ceil_div(wide, hosts), 64) + 64;
  const uint64_t room = ends.room(round_up(smaller(each, ends.count()) * sum.partial_size(), 64));
  const uint64_t memory = room + 2 * wide + hosts * part_wide;

  char* partial(const Chunk& chunk) const { return chunk.memory + room; }
  char* received(const Chunk& chunk, int host) const {
    return partial(chunk) + wide + static_cast<uint64_t>(host) * part_wide;
  }
  char* result(const Chunk& chunk) const { return received(chunk, between.num_hosts()); }
  /// One for each rank. Where they overlap, two ranks compute the same bits.
  EqualSlices slices(const Chunk& chunk) const { return {chunk.span, inside.size()}; }
  /// What a host sums of the slice.
  Span part(const Chunk& chunk, int host) const {
    const uint64_t length = slices(chunk).length;
    return whole ? Span{0, length} : part_of(length, between.num_hosts(), host);
  }

  void prepare(Chunk& chunk) {
    between.each_other([&](int host) {
      between.expect(chunk.expected, host, Mail::kPartial, received(chunk, host),
                     part(chunk, between.own()).count * sum.travel_size());
      if (whole) return;
      const Span theirs = part(chunk, host);
      between.expect(chunk.results, host, Mail::kResult, result(chunk) + theirs.first * sum.size(),
                     theirs.count * sum.size());
    });
  }

  void open(Chunk& chunk) {
    if (ends.needs_agreement()) between.compared(call);
    add_slices(call, sum, inside, chunk.span, ends.terms(chunk.span, chunk.memory), partial(chunk));
    sum.make_ready(partial(chunk), slices(chunk).length);
    between.compared(call);
    between.each_other([&](int host) {
      const Span theirs = part(chunk, host);
      between.send(chunk.sent, host, Mail::kPartial,
                   partial(chunk) + theirs.first * sum.travel_size(),
                   theirs.count * sum.travel_size());
    });
  }

  void middle(Chunk& chunk) {
    HostExchange::wait(chunk.expected, call);
    const Span own = part(chunk, between.own());
    const auto partials = between.partials(partial(chunk) + own.first * sum.travel_size(),
                                           [&](int host) { return received(chunk, host); });
    char* const total = result(chunk) + own.first * sum.size();
    sum.total(partials, own.count, received(chunk, between.own()), total);
    if (whole) return;
    between.each_other([&](int host) {
      between.send(chunk.sent, host, Mail::kResult, total, own.count * sum.size());
    });
  }

  void close(Chunk& chunk) {
    HostExchange::wait(chunk.results, call);
    gather_slices(call, sum, inside, chunk.span, result(chunk),
                  ends.target(chunk.span, chunk.memory));
    ends.done(chunk.span, chunk.memory);
    HostExchange::wait(chunk.sent, call);
  }
};

}  // namespace fastcomm
