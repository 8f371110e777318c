#include "c10d/engines/hosts/host_sum.h"

namespace fastcomm {
namespace {

/// Part `index` of `parts`, which differ by an element at most.
Span part_of(uint64_t count, int parts, int index) {
  const auto bound = [&](int at) {
    return count * static_cast<uint64_t>(at) / static_cast<uint64_t>(parts);
  };
  return {bound(index), bound(index + 1) - bound(index)};
}

void sum_short(HostCall& call, const PartialSum& sum, HostInside& inside, HostExchange& between) {
  const uint64_t count = call.call.count, bytes = count * sum.partial_size();
  const int hosts = between.num_hosts();
  const bool leads = inside.rank() == 0;
  const bool apart = bytes > HostExchange::kEnclosedBytes;  // from the envelope
  char* const room = between.scratch(static_cast<uint64_t>(hosts + 1) * kShortSumBytes);
  const auto partial = [&](int host) {
    return room + static_cast<uint64_t>(host) * kShortSumBytes;
  };
  char *const own = partial(between.own()), *const spare = partial(hosts);
  if (leads) {
    between.begin(call, HostPath::kShort);
    if (apart) {
      between.each_other([&](int host) {
        between.expect(between.expected(), host, Mail::kPartial, partial(host), bytes);
      });
    }
  }
  inside.reduce(call, sum, sum.widened(call.call.input, count, spare), count, own);
  if (leads) {
    between.send_envelopes(call, own, apart ? 0 : bytes);
    between.read_envelopes(call);
    if (apart) {
      between.each_other(
          [&](int host) { between.send(between.sent(), host, Mail::kPartial, own, bytes); });
      HostExchange::wait(between.expected(), call);
    }
    const auto received = [&](int host) { return apart ? partial(host) : between.enclosed(host); };
    sum.total(between.partials(own, received), count, spare, call.call.output);
    between.end_envelopes(call);
  }
  inside.broadcast(call, sum.type, call.call.output, count, 0);
  HostExchange::wait(between.sent(), call);
}

/// Memory of a chunk: its input as partials, if that is another type; the partial of this rank's
/// slice; one for each host; the result.
struct SumInChunks {
  using Chunk = HostExchange::Chunk;

  HostCall& call;
  const PartialSum& sum;
  HostInside& inside;
  HostExchange& between;
  /// Elements of a chunk, and bytes that its parts take.
  const uint64_t each = kHostChunkBytes / sum.partial_size();
  const uint64_t widened = sum.widens() ? kHostChunkBytes : 0;
  const uint64_t wide =
      round_up(ceil_div(smaller(each, call.call.count), inside.size()) * sum.partial_size(), 64);
  const bool whole = between.num_hosts() == 2 && !sum.widens();  // slices are exchanged
  const uint64_t hosts = static_cast<uint64_t>(between.num_hosts());
  const uint64_t part_wide = whole ? wide : round_up(ceil_div(wide, hosts), 64) + 64;
  const uint64_t memory = widened + 2 * wide + hosts * part_wide;

  char* partial(const Chunk& chunk) const { return chunk.memory + widened; }
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
                     part(chunk, between.own()).count * sum.partial_size());
      if (whole) return;
      const Span theirs = part(chunk, host);
      between.expect(chunk.results, host, Mail::kResult, result(chunk) + theirs.first * sum.size(),
                     theirs.count * sum.size());
    });
  }

  void open(Chunk& chunk) {
    const auto* input = static_cast<const char*>(call.call.input) + chunk.span.first * sum.size();
    const auto* terms =
        static_cast<const char*>(sum.widened(input, chunk.span.count, chunk.memory));
    const EqualSlices cuts = slices(chunk);
    std::vector<const void*> inputs;
    for (int rank = 0; rank < inside.size(); ++rank) {
      inputs.push_back(terms + (cuts.first(rank) - chunk.span.first) * sum.partial_size());
    }
    inside.reduce_scatter(call, sum, std::move(inputs), cuts.length, partial(chunk));
    between.compared(call);
    between.each_other([&](int host) {
      const Span theirs = part(chunk, host);
      between.send(chunk.sent, host, Mail::kPartial,
                   partial(chunk) + theirs.first * sum.partial_size(),
                   theirs.count * sum.partial_size());
    });
  }

  void middle(Chunk& chunk) {
    HostExchange::wait(chunk.expected, call);
    const Span own = part(chunk, between.own());
    const auto partials = between.partials(partial(chunk) + own.first * sum.partial_size(),
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
    const EqualSlices cuts = slices(chunk);
    std::vector<void*> outputs;
    for (int rank = 0; rank < inside.size(); ++rank) {
      outputs.push_back(static_cast<char*>(call.call.output) + cuts.first(rank) * sum.size());
    }
    inside.all_gather(call, sum.type, result(chunk), cuts.length, std::move(outputs));
    HostExchange::wait(chunk.sent, call);
  }
};

/// Memory of a chunk: all inputs as partials, if that is another type; the partials of this rank's
/// part and of those in its place; one of each other host.
struct PartsInChunks {
  using Chunk = HostExchange::Chunk;

  HostCall& call;
  const PartialSum& sum;
  HostInside& inside;
  HostExchange& between;
  const uint64_t ranks = static_cast<uint64_t>(inside.whole_size());
  const uint64_t each = std::max<uint64_t>(kHostChunkBytes / sum.partial_size() / ranks, 1);
  const uint64_t wide = round_up(smaller(each, call.call.count) * sum.partial_size(), 64);
  const uint64_t widened = sum.widens() ? ranks * wide : 0;
  const uint64_t memory = widened + 2 * static_cast<uint64_t>(between.num_hosts()) * wide;

  char* partial(const Chunk& chunk, int host) const {
    return chunk.memory + widened + static_cast<uint64_t>(host) * wide;
  }
  char* received(const Chunk& chunk, int host) const {
    return partial(chunk, between.num_hosts() + host);
  }
  uint64_t bytes(const Chunk& chunk) const { return chunk.span.count * sum.partial_size(); }

  void prepare(Chunk& chunk) {
    between.each_other([&](int host) {
      between.expect(chunk.expected, host, Mail::kPartial, received(chunk, host), bytes(chunk));
    });
  }

  /// The partials of all hosts' parts.
  void add_inside(const Chunk& chunk) {
    for (int host = 0; host < between.num_hosts(); ++host) {
      std::vector<const void*> terms;
      for (const int rank : between.layout().hosts[host]) {
        const auto* input = static_cast<const char*>(call.call.inputs[rank]);
        terms.push_back(sum.widened(input + chunk.span.first * sum.size(), chunk.span.count,
                                    chunk.memory + static_cast<uint64_t>(rank) * wide));
      }
      inside.reduce_scatter(call, sum, std::move(terms), chunk.span.count, partial(chunk, host));
    }
  }

  /// The result, of what `received_of(host)` is.
  template <class ReceivedOf>
  void add_up(const Chunk& chunk, const ReceivedOf& received_of) {
    sum.total(between.partials(partial(chunk, between.own()), received_of), chunk.span.count,
              received(chunk, between.own()),
              static_cast<char*>(call.call.output) + chunk.span.first * sum.size());
  }

  void open(Chunk& chunk) {
    add_inside(chunk);
    between.compared(call);
    between.each_other([&](int host) {
      between.send(chunk.sent, host, Mail::kPartial, partial(chunk, host), bytes(chunk));
    });
  }

  void middle(Chunk& chunk) {
    HostExchange::wait(chunk.expected, call);
    add_up(chunk, [&](int host) { return received(chunk, host); });
  }

  void close(Chunk& chunk) { HostExchange::wait(chunk.sent, call); }
};

}  // namespace

void sum_to_all(HostCall& call, HostInside& inside, HostExchange& between) {
  const PartialSum sum(call.call, inside.whole_size());
  if (call.call.count * sum.partial_size() <= kShortSumBytes) {
    return sum_short(call, sum, inside, between);
  }
  SumInChunks plan{call, sum, inside, between};
  between.begin(call, HostPath::kLong);
  between.in_chunks(call, call.call.count, plan.each, plan.memory, plan);
}

void sum_parts(HostCall& call, HostInside& inside, HostExchange& between) {
  const PartialSum sum(call.call, inside.whole_size());
  PartsInChunks plan{call, sum, inside, between};
  if (call.call.count * sum.partial_size() <= HostExchange::kEnclosedBytes) {
    const HostExchange::Chunk all{{0, call.call.count}, between.scratch(plan.memory)};
    between.begin(call, HostPath::kShort);
    plan.add_inside(all);
    between.send_envelopes(call, plan.bytes(all),
                           [&](int host) { return plan.partial(all, host); });
    between.read_envelopes(call);
    plan.add_up(all, [&](int host) { return between.enclosed(host); });
    return between.end_envelopes(call);
  }
  between.begin(call, HostPath::kLong);
  between.in_chunks(call, call.call.count, plan.each, plan.memory, plan);
}

}  // namespace fastcomm
