#include "coll/messages.h"

#include "core/error.h"
#include "core/signature.h"

namespace fastcomm {
namespace {

uint64_t message(size_t from, size_t to, uint64_t bytes) {
  return mix(mix(mix(0, from), to), bytes);
}

template <class Messages>
std::string sizes_of(const Messages& messages) {
  std::string text = "[";
  for (const auto& each : messages) text += concat(text.size() == 1 ? "" : ", ", each.bytes);
  return text + "]";
}

}  // namespace

uint64_t Messages::staged_bytes(int rank) const {
  const auto size = static_cast<int>(sends.size());
  if (same_for_all) return size > 1 ? sends[0].bytes : 0;
  uint64_t bytes = 0;
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) bytes += sends[static_cast<size_t>(peer)].bytes;
  }
  return bytes;
}

uint64_t Messages::balance(int rank) const {
  if (place) return 0;
  const auto own = static_cast<size_t>(rank);
  uint64_t sum = 0;
  for (size_t peer = 0; peer < sends.size(); ++peer) {
    sum += message(own, peer, sends[peer].bytes);
    sum -= message(peer, own, receives[peer].bytes);
  }
  return sum;
}

std::string Messages::describe() const {
  return concat("sends ", sizes_of(sends), " bytes, expects ", place ? "any" : sizes_of(receives));
}

}  // namespace fastcomm
