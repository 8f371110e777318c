#include "coll/in_place.h"

#include <algorithm>

#include "coll/messages.h"
#include "core/env.h"
#include "core/signature.h"

namespace fastcomm {
namespace {

bool always(uint64_t, int) { return true; }

/// In one step: less goes faster through slots, which take turns. The part of a tensor that is in its owner's cache
/// is slow for a peer to write.
bool pays_to_write(uint64_t bytes, int) { return bytes > 1024 * 1024; }

/// A line that a peer has read is in two caches, and its owner waits for each one that it writes again: up to 27 ns
/// where cores are far from each other, several times what the copy to a slot takes. So peers read tensors where
/// they lie only if the user says from which size on. Source: benchmarks/written_again.py.
bool pays_to_read(uint64_t bytes, int) {
  const int64_t least = environment().read_in_place_bytes;
  return least >= 0 && bytes >= static_cast<uint64_t>(least);
}
/// Call::bytes says nothing where sizes differ.
bool may_pay_to_read(uint64_t, int) { return environment().read_in_place_bytes >= 0; }

Reachable whole_message(const Call& call, int, int) {
  if (call.input != call.output) return {};
  return {static_cast<char*>(call.output), call.bytes(), 0};
}

/// For what peers only read, `form` is its size: they may get different amounts.
Reachable read_only(const void* begin, uint64_t bytes) {
  return {const_cast<char*>(static_cast<const char*>(begin)), bytes, bytes};
}

bool overlap(const void* a, uint64_t a_bytes, const void* b, uint64_t b_bytes) {
  const auto *first = static_cast<const char*>(a), *second = static_cast<const char*>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

// What peers read is not written meanwhile. Slots keep the input where a result is to overwrite it.

Reachable own_input(const Call& call, int rank, int size) {
  for (int peer = 0; peer < size; ++peer) {
    const bool over_input = overlap(call.outputs[peer], call.bytes(), call.input, call.bytes());
    if (over_input && peer != rank) return {};
  }
  return read_only(call.input, call.bytes());
}

Reachable root_output(const Call& call, int rank, int) {
  return rank == call.root ? read_only(call.output, call.bytes()) : Reachable{};
}

/// All parts, if they lie end to end.
Reachable parts_in_a_row(const Call& call, int rank, int size) {
  const auto* begin = static_cast<const char*>(call.inputs[0]);
  for (int peer = 0; peer < size; ++peer) {
    if (call.inputs[peer] != begin + static_cast<uint64_t>(peer) * call.bytes()) return {};
    const bool over_part = overlap(call.output, call.bytes(), call.inputs[peer], call.bytes());
    if (over_part && peer != rank) return {};
  }
  return read_only(begin, static_cast<uint64_t>(size) * call.bytes());
}

/// From the first to the last byte of what goes to peers.
Reachable sent_messages(const Call& call, int rank, int size) {
  uint64_t bytes = call.messages->staged_bytes(rank);
  if (bytes == 0 || !pays_to_read(bytes, size)) return {};
  const char *begin = nullptr, *end = nullptr;
  for (int peer = 0; peer < size; ++peer) {
    const Messages::Sent& sent = call.messages->sends[static_cast<size_t>(peer)];
    if (peer == rank || sent.bytes == 0) continue;
    begin = begin == nullptr ? sent.data : std::min(begin, sent.data);
    end = end == nullptr ? sent.data + sent.bytes : std::max(end, sent.data + sent.bytes);
  }
  bytes = static_cast<uint64_t>(end - begin);
  for (const Messages::Expected& expected : call.messages->receives) {
    if (overlap(expected.data, expected.bytes, begin, bytes)) return {};
  }
  return read_only(begin, bytes);
}

AnyDirect all_reduce_direct(const AnySchedule&, const PeerView& peers, const CallHeader& header,
                            size_t bytes, char* const* buffers) {
  AllReduceDirect direct{peers, header.count, static_cast<uint32_t>(bytes / header.count), {}};
  std::copy_n(buffers, peers.size, direct.buffers);
  return direct;
}

/// A list can be reduced where it lies if nothing is cast, and the norms have room in the slots. The same
/// on every rank.
bool suits_direct(const GradientList& list, int size) {
  for (const Gradient& tensor : list.tensors()) {
    if (tensor.wire != tensor.dtype) return false;
  }
  for (int owner = 0; owner < size; ++owner) {
    uint64_t norms = 0;
    list.for_units_of(owner, [&](uint32_t) { norms += sizeof(BlockNorm); });
    if (norms > list.slot_bytes()) return false;
  }
  return list.units() != 0;
}

/// From the first to the last byte of a list.
Reachable whole_list(const Call& call, int, int size) {
  const GradientList& list = *call.gradients;
  if (!suits_direct(list, size)) return {};
  char *begin = nullptr, *end = nullptr;
  for (const Gradient& tensor : list.tensors()) {
    if (tensor.count == 0) continue;
    char* last = tensor.data + tensor.count * dtype_size(tensor.dtype);
    begin = begin == nullptr ? tensor.data : std::min(begin, tensor.data);
    end = end == nullptr ? last : std::max(end, last);
  }
  Reachable found{begin, static_cast<size_t>(end - begin), 0};
  found.form = found.bytes;
  for (const Gradient& tensor : list.tensors()) {
    if (tensor.count == 0) continue;
    found.form = mix(found.form, static_cast<uint64_t>(tensor.data - begin));
  }
  return found;
}

AnyDirect fused_direct(const AnySchedule& staged, const PeerView& peers, const CallHeader&, size_t,
                       char* const* buffers) {
  FusedDirect direct{peers, std::get<FusedAllReduce>(staged).list, {}};
  std::copy_n(buffers, peers.size, direct.bases);
  return direct;
}

}  // namespace

const InPlace kMessageInPlace{whole_message, always, all_reduce_direct};
const InPlace kShortMessageInPlace{whole_message, pays_to_write, all_reduce_direct};
const InPlace kListInPlace{whole_list, always, fused_direct};
const InPlace kInputReadInPlace{own_input, pays_to_read};
const InPlace kRootReadInPlace{root_output, pays_to_read, nullptr, /*from_root=*/true};
const InPlace kPartsReadInPlace{parts_in_a_row, pays_to_read};
const InPlace kMessagesReadInPlace{sent_messages, may_pay_to_read};

}  // namespace fastcomm
