#include "c10d/engines/hosts/host_sum.h"

#include <cstring>

#include "c10d/engines/hosts/host_moves.h"
#include "c10d/engines/hosts/sum_in_chunks.h"
#include "c10d/engines/hosts/trees_in_chunks.h"
#include "kernels/gradient_cpu.h"

namespace fastcomm {
namespace {

void sum_short(HostCall& call, const PartialSum& sum, HostInside& inside, HostExchange& between) {
  const uint64_t count = call.call.count, bytes = count * sum.partial_size();
  const int hosts = between.num_hosts();
  const bool leads = inside.rank() == 0;
  const bool apart = bytes > HostExchange::kEnclosedBytes;  // from the envelope
  const uint64_t wide = between.thresholds().short_bytes;
  char* const room = between.scratch(static_cast<uint64_t>(hosts + 1) * wide);
  const auto partial = [&](int host) { return room + static_cast<uint64_t>(host) * wide; };
  char *const own = partial(between.own()), *const spare = partial(hosts);
  if (leads) {
    between.begin(call, HostPath::kShort);
    if (apart) {
      between.each_other([&](int host) { between.expect_early(host, partial(host), bytes); });
    }
  }
  inside.reduce(call, sum, sum.widened(call.call.input, count, spare), count, own, 0);
  if (leads) {
    between.send_envelopes(call, own, apart ? 0 : bytes);
    if (apart) between.each_other([&](int host) { between.send_early(host, own, bytes); });
    between.read_envelopes(call);
    HostExchange::wait(between.expected(), call);
    const auto received = [&](int host) { return apart ? partial(host) : between.enclosed(host); };
    sum.total(between.partials(own, received), count, spare, call.call.output);
    between.end_envelopes(call);
  }
  inside.broadcast(call, sum.type, call.call.output, count, 0);
  HostExchange::wait(between.sent(), call);
}

/// As sum_short, but the total goes to the root. The first ranks move it, as in every short way:
/// hosts whose ranks call different operations find that.
void sum_short_to_root(HostCall& call, const PartialSum& sum, HostInside& inside,
                       HostExchange& between) {
  const uint64_t count = call.call.count, bytes = count * sum.partial_size();
  const int hosts = between.num_hosts(), root_host = between.layout().host_of(call.call.root);
  const bool leads = inside.rank() == 0, at_root = root_host == between.own();
  const bool apart = bytes > HostExchange::kEnclosedBytes;
  const uint64_t wide = between.thresholds().short_bytes;
  char* const room = between.scratch(static_cast<uint64_t>(hosts + 2) * wide);
  const auto partial = [&](int host) { return room + static_cast<uint64_t>(host) * wide; };
  char *const own = partial(between.own()), *const spare = partial(hosts);
  char* const total = partial(hosts + 1);
  if (leads) {
    between.begin(call, HostPath::kShort);
    between.each_other([&](int host) {
      if (at_root && apart) between.expect_early(host, partial(host), bytes);
    });
  }
  inside.reduce(call, sum, sum.widened(call.call.input, count, spare), count, own, 0);
  if (leads) {
    between.send_envelopes(call, own, apart ? 0 : bytes);
    if (apart && !at_root) between.send_early(root_host, own, bytes);
    between.read_envelopes(call);
    HostExchange::wait(between.expected(), call);
    const auto received = [&](int host) { return apart ? partial(host) : between.enclosed(host); };
    if (at_root) sum.total(between.partials(own, received), count, spare, total);
    between.end_envelopes(call);
  }
  // What the first rank has found is known to all ranks then.
  if (at_root) {
    const int place = between.layout().place_of(call.call.root);
    auto messages = std::make_shared<Messages>(inside.size());
    const uint64_t length = count * sum.size();
    if (leads) messages->sends[place] = {total, length};
    if (inside.rank() == place)
      messages->receives[0] = {static_cast<char*>(call.call.output), length};
    inside.exchange(call, messages);
  } else {
    inside.barrier(call);
  }
  HostExchange::wait(between.sent(), call);
}

/// Memory of a chunk: its input as partials, if that is another type; the partial of this rank's
/// slice; at the root's host one of each other host, and the result.
struct SumToRootInChunks {
  using Chunk = HostExchange::Chunk;

  HostCall& call;
  const PartialSum& sum;
  const OneTensor tensor;
  HostInside& inside;
  HostExchange& between;
  const int root_host = between.layout().host_of(call.call.root);
  const int root_place = between.layout().place_of(call.call.root);
  const bool gets = root_host == between.own();
  /// Less with many hosts, whose partials all come here.
  const uint64_t each = between.thresholds().chunk_of(call.call.count * sum.partial_size()) /
                        sum.partial_size() /
                        ceil_div(static_cast<uint64_t>(between.num_hosts()), 2);
  const uint64_t wide =
      round_up(ceil_div(smaller(each, call.call.count), inside.size()) * sum.partial_size(), 64);
  const uint64_t room =
      tensor.room(round_up(smaller(each, call.call.count) * sum.partial_size(), 64));
  const uint64_t memory = room + (2 + static_cast<uint64_t>(gets ? between.num_hosts() : 0)) * wide;

  char* partial(const Chunk& chunk) const { return chunk.memory + room; }
  char* received(const Chunk& chunk, int host) const {
    return partial(chunk) + (1 + static_cast<uint64_t>(host)) * wide;
  }
  char* result(const Chunk& chunk) const { return received(chunk, between.num_hosts()); }
  EqualSlices slices(const Chunk& chunk) const { return {chunk.span, inside.size()}; }
  uint64_t bytes(const Chunk& chunk) const { return slices(chunk).length * sum.partial_size(); }

  void prepare(Chunk& chunk) {
    if (!gets) return;
    between.each_other([&](int host) {
      between.expect(chunk.expected, host, Mail::kPartial, received(chunk, host), bytes(chunk));
    });
  }

  void open(Chunk& chunk) {
    add_slices(call, sum, inside, chunk.span, tensor.terms(chunk.span, chunk.memory),
               partial(chunk));
    between.compared(call);
    if (!gets) between.send(chunk.sent, root_host, Mail::kPartial, partial(chunk), bytes(chunk));
  }

  void middle(Chunk& chunk) {
    HostExchange::wait(chunk.expected, call);
    if (!gets) return;
    const auto partials =
        between.partials(partial(chunk), [&](int host) { return received(chunk, host); });
    sum.total(partials, slices(chunk).length, received(chunk, between.own()), result(chunk));
  }

  void close(Chunk& chunk) {
    if (gets) {
      const EqualSlices cuts = slices(chunk);
      const uint64_t length = cuts.length * sum.size();
      auto messages = std::make_shared<Messages>(inside.size());
      messages->sends[root_place] = {result(chunk), length};
      for (int rank = 0; rank < inside.size() && inside.rank() == root_place; ++rank) {
        char* const to = static_cast<char*>(call.call.output) + cuts.first(rank) * sum.size();
        messages->receives[rank] = {to, length};
      }
      inside.exchange(call, messages);
    }
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
  /// At least what an envelope holds, which goes in one piece however many ranks there are.
  const uint64_t each =
      std::max(between.thresholds().chunk_of(call.call.count * sum.partial_size() * ranks) /
                   sum.partial_size() / ranks,
               HostExchange::kEnclosedBytes / sum.partial_size());
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

/// The ends of a sum of one tensor that the root alone gets. Others have it in a chunk's memory.
struct AtRoot {
  const Call& call;
  const PartialSum& sum;
  const bool is_root;
  const OneTensor tensor{call, sum};

  uint64_t count() const { return call.count; }
  uint64_t room(uint64_t each) const { return each; }
  bool needs_agreement() const { return false; }
  const void* terms(const Span& span, char* room) const { return tensor.terms(span, room); }
  char* target(const Span& span, char* room) const {
    return is_root ? tensor.target(span, room) : room;
  }
  void done(const Span&, char*) const {}
};

/// The ends of a sum of one tensor a rank, of which each keeps its own.
struct OwnPart {
  const Call& call;
  const PartialSum& sum;
  const int ranks, own;

  uint64_t count() const { return call.count * static_cast<uint64_t>(ranks); }
  uint64_t room(uint64_t each) const { return each; }
  bool needs_agreement() const { return false; }
  const void* terms(const Span& span, char* room) const {
    each_part(span, [&](int rank, const Span& part, uint64_t at) {
      const auto* from = static_cast<const char*>(call.inputs[rank]) + part.first * sum.size();
      convert_function(sum.partial, sum.type)(room + at * sum.partial_size(), from, part.count);
    });
    return room;
  }
  char* target(const Span&, char* room) const { return room; }
  void done(const Span& span, char* room) const {
    each_part(span, [&](int rank, const Span& part, uint64_t at) {
      if (rank != own) return;
      std::memcpy(static_cast<char*>(call.output) + part.first * sum.size(), room + at * sum.size(),
                  part.count * sum.size());
    });
  }

 private:
  template <class Visit>
  void each_part(const Span& span, const Visit& visit) const {
    for (uint64_t at = 0; at < span.count;) {
      const uint64_t first = (span.first + at) % call.count;
      const uint64_t count = smaller(call.count - first, span.count - at);
      visit(static_cast<int>((span.first + at) / call.count), Span{first, count}, at);
      at += count;
    }
  }
};

/// In any placement.
template <class Ends>
void sum_trees(HostCall& call, const PartialSum& sum, const Ends& ends, HostInside& inside,
               HostExchange& between) {
  if (ends.count() == 0) return meet(call, inside, between);
  TreesInChunks<Ends> plan{call, sum, ends, inside, between};
  between.begin(call, HostPath::kLong);
  between.in_chunks(call, ends.count(), plan.each, plan.memory, plan);
}

}  // namespace

void sum_to_all(HostCall& call, HostInside& inside, HostExchange& between) {
  const PartialSum sum(call.call, inside.whole_size());
  if (!between.layout().aligned()) {
    return sum_trees(call, sum, OneTensor{call.call, sum}, inside, between);
  }
  if (call.call.count * sum.partial_size() <= between.thresholds().short_bytes) {
    return sum_short(call, sum, inside, between);
  }
  SumInChunks<OneTensor> plan{call, sum, {call.call, sum}, inside, between};
  between.begin(call, HostPath::kLong);
  between.in_chunks(call, call.call.count, plan.each, plan.memory, plan);
}

void sum_to_root(HostCall& call, HostInside& inside, HostExchange& between) {
  const PartialSum sum(call.call, inside.whole_size());
  if (!between.layout().aligned()) {
    const bool is_root = between.own_rank() == call.call.root;
    return sum_trees(call, sum, AtRoot{call.call, sum, is_root}, inside, between);
  }
  if (call.call.count * sum.partial_size() <= between.thresholds().short_bytes) {
    return sum_short_to_root(call, sum, inside, between);
  }
  SumToRootInChunks plan{call, sum, {call.call, sum}, inside, between};
  between.begin(call, HostPath::kLong);
  inside.barrier(call);  // so an envelope says that a whole host agrees: nothing comes back from it
  between.in_chunks(call, call.call.count, plan.each, plan.memory, plan);
}

void sum_parts(HostCall& call, HostInside& inside, HostExchange& between) {
  const PartialSum sum(call.call, inside.whole_size());
  if (!between.layout().aligned()) {
    const OwnPart ends{call.call, sum, inside.whole_size(), between.own_rank()};
    return sum_trees(call, sum, ends, inside, between);
  }
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
