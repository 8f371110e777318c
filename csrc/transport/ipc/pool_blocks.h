// Which pieces of a pool's segments are free, and whose. Arithmetic alone. What a sequence of calls gives depends
// on nothing else, so ranks that make the same calls have the same pieces, and ask for more memory at the same
// time.
//
// As torch's allocators have it, a piece that a stream has had is that stream's for ever: whoever gave it back
// may let the stream wait for other users only afterwards, before its next use there.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace fastcomm {

/// One thread at a time.
class PoolBlocks {
 public:
  static constexpr uint64_t kGranule = 512;  // bytes: pieces begin and end at multiples

  struct Block {
    int segment;
    uint64_t offset;
    uint64_t bytes;
  };

  static uint64_t rounded(uint64_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

  /// All of a segment, free, and no stream's yet.
  void add(int segment, uint64_t bytes) { free_[{segment, 0}] = {bytes, std::nullopt}; }
  /// Of the stream's free pieces, or else of those that are no stream's, the smallest that has so many bytes, of
  /// several the first, cut to them; none if there is none.
  std::optional<Block> take(uint64_t bytes, int64_t stream);
  /// Frees a piece that was taken for the stream. Joins it to its neighbours, if they are that stream's.
  void give(const Block& block, int64_t stream);

 private:
  using Place = std::pair<int, uint64_t>;  // segment, offset
  struct Free {
    uint64_t bytes;
    std::optional<int64_t> stream;
  };

  std::map<Place, Free> free_;
};

}  // namespace fastcomm
