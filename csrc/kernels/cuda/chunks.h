// Division of a kernel's work over a table of segments among blocks, and tools for its launcher.
//
// Every segment is cut into chunks of one size, counted through all segments; block b of g works on
// chunks b, b + g, b + 2g, ... and finds each one's segment in the table of first chunks. Blocks
// never wait for each other, so any grid is right; the launcher caps it at the blocks that a device
// holds at once.
//
// Memory ordering: none. No two blocks write the same byte, and the order of the stream does the
// rest.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/cuda_host.h"
#include "core/error.h"
#include "core/hd.h"
#include "kernels/channel.h"
#include "kernels/cuda/residency.h"
#include "kernels/cuda_api.h"

namespace fastcomm {

#if defined(FC_SHIM)
constexpr int kTableThreads = 4;  // per block; each is a thread of the host
#else
constexpr int kTableThreads = 256;
#endif

// Parameters of a kernel may take 32,764 bytes on compute capability 7.0 and later.
constexpr int kMaxParameterBytes = 32764;

/// The segment of `chunk`: the last i with first(i) <= chunk, for a growing `first`. `last` is the
/// segment of the block's previous chunk, or 0: usually it is the same one.
template <class First>
FC_DEVICE int segment_of_chunk(const First& first, int count, int last, uint32_t chunk) {
  int low = last;
  if (low + 1 == count || chunk < first(low + 1)) return low;
  int high = count;
  ++low;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first(middle) <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// The same, for tables whose entries lie far apart. It looks beside `last` first: a table is in
/// constant memory, whose small cache a search of all of it misses for every chunk.
template <class First>
FC_DEVICE int segment_beside(const First& first, int count, int last, uint32_t chunk) {
  int low = last, step = 1;
  while (low + step < count && first(low + step) <= chunk) {
    low += step;
    step *= 2;
  }
  const int high = low + step < count ? low + step : count;
  return segment_of_chunk(first, high, low, chunk);
}

/// The channel as seen by the kernel that is launched next; nullptr stays nullptr.
inline const ChannelState* view_of_channel(const ChannelState* channel) {
  if (channel == nullptr) return nullptr;
  const char* const failed = reinterpret_cast<const char*>(kernel_skip(&channel->failed));
  return reinterpret_cast<const ChannelState*>(failed - offsetof(ChannelState, failed));
}

/// Loads a kernel over a table for the current device, if there is one (load_multi_copy).
template <class Table>
void load_kernel(void (*kernel)(Table)) {
  if (kernel != nullptr) resident_blocks(kernel, kTableThreads);
}

/// Blocks of kTableThreads threads for `chunks` chunks: at least one, and no more than the current
/// device holds of this kernel at once, or than a GridLimit allows.
template <class Kernel>
int blocks_for_chunks(Kernel kernel, uint64_t chunks) {
  int most = std::max(1, resident_blocks(kernel, kTableThreads));
  if (GridLimit::current() != 0) most = std::min(most, GridLimit::current());
  return static_cast<int>(std::min<uint64_t>(chunks, most));
}

}  // namespace fastcomm
