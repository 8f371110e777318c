#include "transport/ipc/pool_blocks.h"

#include <iterator>

#include "core/control.h"

namespace fastcomm {

std::optional<PoolBlocks::Block> PoolBlocks::take(uint64_t bytes, int64_t stream) {
  bytes = rounded(bytes);
  if (bytes == 0) return std::nullopt;
  const auto smallest = [&](const auto& may_be) {
    auto best = free_.end();
    for (auto each = free_.begin(); each != free_.end(); ++each) {
      const Free& piece = each->second;
      if (piece.bytes < bytes || !may_be(piece)) continue;
      if (best == free_.end() || piece.bytes < best->second.bytes) best = each;
    }
    return best;
  };
  auto best = smallest([&](const Free& piece) {
    return piece.stream == stream ||
           (piece.stream.has_value() && FC_LEFT_OUT(Control::kShareStreams));
  });
  if (best == free_.end())
    best = smallest([](const Free& piece) { return !piece.stream.has_value(); });
  if (best == free_.end()) return std::nullopt;
  const auto [segment, offset] = best->first;
  const Free whole = best->second;
  free_.erase(best);
  if (whole.bytes > bytes) free_[{segment, offset + bytes}] = {whole.bytes - bytes, whole.stream};
  return Block{segment, offset, bytes};
}

void PoolBlocks::give(const Block& block, int64_t stream) {
  const Free piece{block.bytes, stream};
  const auto here = free_.insert({{block.segment, block.offset}, piece}).first;
  const auto join = [this](auto low, auto high) {
    if (low->first.first != high->first.first || low->second.stream != high->second.stream) return;
    if (low->first.second + low->second.bytes != high->first.second) return;
    low->second.bytes += high->second.bytes;
    free_.erase(high);
  };
  if (const auto next = std::next(here); next != free_.end()) join(here, next);
  if (here != free_.begin()) join(std::prev(here), here);
}

}  // namespace fastcomm
