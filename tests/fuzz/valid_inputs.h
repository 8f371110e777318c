// Inputs of the fuzz target that stand for honest peers: where a fuzzer begins.
#pragma once

#include <cstdint>
#include <vector>

namespace fastcomm::testing {

using Bytes = std::vector<uint8_t>;

/// One honest input for each way, and each size and rank of a group. Zeros change nothing, and give
/// a fuzzer bytes to change.
inline std::vector<Bytes> valid_inputs() {
  std::vector<Bytes> all;
  for (uint8_t way = 0; way < 3; ++way) {
    all.push_back({way, uint8_t(way == 2 ? 8 : 0), 0, 0, 0, 0, 0, 0});
  }
  for (uint8_t size = 0; size < 2; ++size) {
    for (uint8_t rank = 0; rank < size + 2; ++rank) {
      all.push_back({3, size, rank});
      Bytes longer(40, 0);
      longer[0] = 3, longer[1] = size, longer[2] = rank;
      all.push_back(longer);
    }
  }
  return all;
}

}  // namespace fastcomm::testing
