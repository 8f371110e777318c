// The free pieces of a pool's segments, and the streams that own them. Arithmetic alone: the result
// depends only on the sequence of calls, so ranks that make the same calls have the same pieces,
// and ask for more memory at the same time.
//
// As in torch's allocators, a piece stays for ever with the first stream that took it: its user may
// give it back first, and let the stream wait for other users later, before its next use there.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace fastcomm {

/// One thread at a time.
class PoolBlocks {
 public:
  static constexpr uint64_t kGranule = 512;  // bytes: pieces start and end at multiples

  struct Block {
    int segment;
    uint64_t offset;
    uint64_t bytes;
  };

  static uint64_t rounded(uint64_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

  /// Adds all of a segment, free and without a stream.
  void add(int segment, uint64_t bytes) { free_[{segment, 0}] = {bytes, std::nullopt}; }
  /// Takes the smallest piece of at least `bytes` from the stream's free pieces, else from those
  /// without a stream; the first of equals, cut to `bytes`; none if there is none.
  std::optional<Block> take(uint64_t bytes, int64_t stream);
  /// Frees a piece that was taken for the stream. Joins it to its neighbours if they are that
  /// stream's.
  void give(const Block& block, int64_t stream);

 private:
  using Address = std::pair<int, uint64_t>;  // segment, offset
  struct Free {
    uint64_t bytes;
    std::optional<int64_t> stream;
  };

  std::map<Address, Free> free_;
};

}  // namespace fastcomm
