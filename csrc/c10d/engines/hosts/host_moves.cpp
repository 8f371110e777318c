#include "c10d/engines/hosts/host_moves.h"

#include <cstring>

#include "c10d/engines/hosts/gather_in_chunks.h"

namespace fastcomm {
namespace {

void copy_bytes(void* to, const void* from, uint64_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

/// Straight between the user's tensors (GatherInChunks).
struct EvenPlaces {
  const Call& call;

  uint64_t bytes(int) const { return call.bytes(); }
  uint64_t room(uint64_t) const { return 0; }
  const char* own(const Span& span, int, char*) const {
    return static_cast<const char*>(call.input) + span.first;
  }
  char* place(const Span& span, int rank, char*) const {
    return static_cast<char*>(call.outputs[rank]) + span.first;
  }
  void done(const Span&, int, char*) const {}
};

struct SpreadInChunks {
  using Chunk = HostExchange::Chunk;

  HostCall& call;
  HostInside& inside;
  HostExchange& between;
  const int root_host = between.layout().host_of(call.call.root);
  const int root_place = between.layout().place_of(call.call.root);
  const uint64_t size = dtype_size(call.call.dtype);
  const uint64_t each = between.thresholds().chunk_of(call.call.bytes()) / size;
  const bool gives = root_host == between.own();

  char* data(uint64_t element) const {
    return static_cast<char*>(call.call.output) + element * size;
  }
  /// One for each rank.
  EqualSlices slices(const Chunk& chunk) const { return {chunk.span, inside.size()}; }
  char* own_slice(const Chunk& chunk) const { return data(slices(chunk).first(inside.rank())); }
  uint64_t slice_bytes(const Chunk& chunk) const { return slices(chunk).length * size; }

  void prepare(Chunk& chunk) {
    if (gives) return;
    between.expect(chunk.expected, root_host, Mail::kResult, own_slice(chunk), slice_bytes(chunk));
  }

  void open(Chunk& chunk) {
    between.compared(call);
    if (!gives) return;
    inside.broadcast(call, call.call.dtype, data(chunk.span.first), chunk.span.count, root_place);
    between.each_other([&](int host) {
      between.send(chunk.sent, host, Mail::kResult, own_slice(chunk), slice_bytes(chunk));
    });
  }

  void middle(Chunk& chunk) {
    if (gives) return;
    HostExchange::wait(chunk.expected, call);
    const EqualSlices cuts = slices(chunk);
    std::vector<void*> outputs;
    for (int rank = 0; rank < inside.size(); ++rank) outputs.push_back(data(cuts.first(rank)));
    inside.all_gather(call, call.call.dtype, own_slice(chunk), cuts.length, std::move(outputs));
  }

  void close(Chunk& chunk) { HostExchange::wait(chunk.sent, call); }
};

void spread_short(HostCall& call, HostInside& inside, HostExchange& between) {
  const Call& user = call.call;
  const int root_host = between.layout().host_of(user.root);
  const int root_place = between.layout().place_of(user.root);
  const uint64_t bytes = user.bytes();
  const bool leads = inside.rank() == 0, gives = root_host == between.own();
  const bool apart = bytes > HostExchange::kEnclosedBytes;
  char* const copy =
      between.scratch(between.thresholds().short_bytes);  // users' memory is written at the end
  if (leads) between.begin(call, HostPath::kShort);
  if (leads && apart && !gives) between.expect_early(root_host, copy, bytes);
  if (gives) {
    if (inside.rank() == root_place) copy_bytes(copy, user.output, bytes);
    inside.broadcast(call, user.dtype, copy, user.count, root_place);
    if (leads) {
      between.send_envelopes(call, copy, apart ? 0 : bytes);
      if (apart) between.each_other([&](int host) { between.send_early(host, copy, bytes); });
      between.read_envelopes(call);
      between.end_envelopes(call);
    }
    inside.barrier(call);
    if (inside.rank() != root_place) copy_bytes(user.output, copy, bytes);
    return HostExchange::wait(between.sent(), call);
  }
  inside.barrier(call);  // whose envelope says that the host agrees
  if (leads) {
    between.send_envelopes(call);
    between.read_envelopes(call);
    if (!apart) copy_bytes(copy, between.enclosed(root_host), bytes);
    between.end_envelopes(call);
    HostExchange::wait(between.expected(), call);
  }
  inside.broadcast(call, user.dtype, leads ? copy : user.output, user.count, 0);
  if (leads) copy_bytes(user.output, copy, bytes);
}

}  // namespace

void gather_to_all(HostCall& call, HostInside& inside, HostExchange& between) {
  const EvenPlaces places{call.call};
  const uint64_t bytes = call.call.bytes();
  if (bytes > HostExchange::kEnclosedBytes) return gather_in_chunks(call, inside, between, places);
  const GatherInChunks<EvenPlaces> plan{call, inside, between, places, bytes};
  const HostExchange::Chunk all{{0, bytes}};
  between.begin(call, HostPath::kShort);
  between.send_envelopes(call, call.call.input, bytes);
  inside.barrier(call);  // its own host agrees, before it waits for another
  between.read_envelopes(call);
  plan.pass_on(all, between.own(), static_cast<const char*>(call.call.input));
  between.each_other([&](int host) { plan.pass_on(all, host, between.enclosed(host)); });
  between.end_envelopes(call);
}

void spread(HostCall& call, HostInside& inside, HostExchange& between) {
  if (call.call.bytes() <= between.thresholds().short_bytes)
    return spread_short(call, inside, between);
  SpreadInChunks plan{call, inside, between};
  between.begin(call, HostPath::kLong);
  inside.barrier(call);
  between.in_chunks(call, call.call.count, plan.each, 0, plan);
}

void meet(HostCall& call, HostInside& inside, HostExchange& between) {
  inside.barrier(call);
  if (inside.rank() == 0) {
    between.begin(call, HostPath::kShort);
    between.send_envelopes(call);
    between.read_envelopes(call);
    between.end_envelopes(call);
  }
  inside.barrier(call);
}

}  // namespace fastcomm
