// A list of pieces of memory, cut into parts of about the same size for threads to take.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastcomm {

/// Consecutive bytes of the list: from byte `begin` of `item` on, into later items.
struct ListPart {
  size_t item = 0;
  uint64_t begin = 0;
  uint64_t bytes = 0;
};

/// Items of `sizes` bytes, all of them exactly once, in parts of at most `most` bytes, a multiple of 64.
/// Cuts lie at multiples of 64 bytes of an item, or at its ends.
inline std::vector<ListPart> cut_list(const std::vector<uint64_t>& sizes,
                                      uint64_t most = 256 * 1024) {
  std::vector<ListPart> parts;
  ListPart part;
  for (size_t item = 0; item < sizes.size(); ++item) {
    uint64_t at = 0;
    while (at < sizes[item]) {
      const uint64_t left = sizes[item] - at, room = most - part.bytes;
      uint64_t taken = std::min(left, room);
      if (taken < left) taken = taken / 64 * 64;
      if (taken == 0) {
        parts.push_back(part);
        part = {item, at, 0};
        continue;
      }
      if (part.bytes == 0) part = {item, at, 0};
      part.bytes += taken;
      at += taken;
    }
  }
  if (part.bytes != 0) parts.push_back(part);
  return parts;
}

/// Calls `work(item, begin, bytes)` for the bytes of each item that lie in the part.
template <class Work>
void for_each_piece(const ListPart& part, const std::vector<uint64_t>& sizes, const Work& work) {
  size_t item = part.item;
  uint64_t begin = part.begin, left = part.bytes;
  while (left != 0) {
    const uint64_t bytes = std::min(left, sizes[item] - begin);
    if (bytes != 0) work(item, begin, bytes);
    left -= bytes;
    ++item;
    begin = 0;
  }
}

}  // namespace fastcomm
