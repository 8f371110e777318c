#include "coll/in_place.h"

#include <algorithm>

#include "core/signature.h"

namespace fastcomm {
namespace {

/// For one step: smaller messages go faster through slots, which take turns. The part of a tensor
/// that is in its owner's cache is slow for a peer to write.
constexpr uint64_t kPaysToWrite = 1024 * 1024 + 1;

Reachable whole_message(const Call& call, int) {
  if (call.input != call.output) return {};
  return {static_cast<char*>(call.output), call.bytes(), 0};
}

AnyDirect all_reduce_direct(const AnySchedule&, const PeerView& peers, const CallHeader& header,
                            size_t bytes, char* const* buffers) {
  AllReduceDirect direct{peers, header.count, static_cast<uint32_t>(bytes / header.count), {}};
  std::copy_n(buffers, peers.size, direct.buffers);
  return direct;
}

/// True if a list can be reduced in place: nothing is cast, and the norms have room in the slots.
/// The same on every rank.
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
Reachable whole_list(const Call& call, int size) {
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

const InPlace kMessageInPlace{whole_message, 0, all_reduce_direct};
const InPlace kShortMessageInPlace{whole_message, kPaysToWrite, all_reduce_direct};
const InPlace kListInPlace{whole_list, 0, fused_direct};

}  // namespace fastcomm
