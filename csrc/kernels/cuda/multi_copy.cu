// The kernel of kernels/cuda/multi_copy.h.
//
// A chunk is the data that a block moves with all loads of a thread in flight at once. Chunks of a
// segment end at multiples of 128 bytes of the destination, so every block except the outer ones
// writes whole lines; a block may read a pack of the source beyond its chunk, but not beyond the
// segment. Cost: one launch, each byte read once and written once; 2, 7 or 29 KB of parameters,
// depending on which of the three tables holds the segments.
//
// Memory ordering: none (kernels/cuda/chunks.h). Also compiled for the host, under the execution
// shim (FC_SHIM).
#include "kernels/cuda/multi_copy.h"

#include "core/cuda_host.h"
#include "core/touches.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/copy_block.h"

namespace fastcomm {
namespace {

constexpr int kSmallTable = 64;  // segments that travel in smaller blocks of parameters
constexpr int kMediumTable = 256;
constexpr uint64_t kDeviceLine = 128;
constexpr uint64_t kChunkBytes = uint64_t{kTableThreads} * kPacksInFlight * kPackBytes;
static_assert(kChunkBytes % kDeviceLine == 0, "chunks end at lines");

template <int kCapacity>
struct CopyTable {
  char* dst[kCapacity];
  const char* src[kCapacity];
  uint64_t bytes[kCapacity];        // more than 0
  uint32_t first_chunk[kCapacity];  // of the launch
  int count;
  uint32_t chunks;
  const ChannelState* channel;
  const uint64_t* sources;  // nullptr, or replaces `src`
};
static_assert(sizeof(CopyTable<kMaxCopySegments>) <= kMaxParameterBytes, "parameters");

/// Bytes from a line of the destination to its start: chunks are counted from there.
FC_HD uint64_t lead_of(const char* dst) { return address_of(dst) % kDeviceLine; }

/// The table is indexed at run time, so it stays in parameter space: a copy would lie in local
/// memory.
template <int kCapacity>
__global__ void __launch_bounds__(kTableThreads)
    multi_copy_kernel(const __grid_constant__ CopyTable<kCapacity> table) {
  if (has_failed(table.channel)) return;
  const auto source = [&](int i) {
    return table.sources == nullptr ? table.src[i]
                                    : reinterpret_cast<const char*>(table.sources[i]);
  };
  if (table.sources != nullptr && blockIdx.x == 0) {  // for all of the grid
    for (int i = 0; i < table.count; ++i) FC_TOUCHES(source(i), table.bytes[i], false);
  }
  int segment = 0;
  for (uint32_t chunk = blockIdx.x; chunk < table.chunks; chunk += gridDim.x) {
    segment =
        segment_of_chunk([&](int i) { return table.first_chunk[i]; }, table.count, segment, chunk);
    char* dst = table.dst[segment];
    const uint64_t lead = lead_of(dst);
    const uint64_t at = (chunk - table.first_chunk[segment]) * kChunkBytes;
    const uint64_t begin = at < lead ? 0 : at - lead;
    uint64_t end = at + kChunkBytes - lead;
    const uint64_t bytes = table.bytes[segment];
    if (end > bytes) end = bytes;
    copy_by_block(dst + begin, source(segment) + begin, end - begin, {begin, bytes - end});
  }
}

/// Enqueues one kernel for as many segments as the table holds; returns their number.
template <int kCapacity>
int launch_table(const CopySegment* segments, int count, cudaStream_t stream,
                 const ChannelState* channel, const uint64_t* sources = nullptr) {
  CopyTable<kCapacity> table;  // not cleared: the kernel reads `count` entries
  table.count = 0;
  uint64_t chunks = 0;
  int taken = 0;
  for (; taken < count && table.count < kCapacity; ++taken) {
    const CopySegment& segment = segments[taken];
    if (sources == nullptr && (segment.bytes == 0 || segment.dst == segment.src)) continue;
    table.dst[table.count] =
        kernel_view(static_cast<char*>(segment.dst), segment.bytes, Touch::kWrite);
    if (sources == nullptr) {
      table.src[table.count] =
          kernel_view(static_cast<const char*>(segment.src), segment.bytes, Touch::kRead);
    }
    table.bytes[table.count] = segment.bytes;
    table.first_chunk[table.count] = static_cast<uint32_t>(chunks);
    ++table.count;
    const uint64_t lead = lead_of(static_cast<const char*>(segment.dst));
    chunks += (lead + segment.bytes + kChunkBytes - 1) / kChunkBytes;
    FC_CHECK(chunks < uint64_t{1} << 31, "multi_copy: more bytes than one launch can count");
  }
  table.chunks = static_cast<uint32_t>(chunks);
  table.sources = kernel_view(sources, table.count * sizeof(*sources), Touch::kRead);
  if (table.count == 0) return taken;
  table.channel = view_of_channel(channel);
  const auto kernel = multi_copy_kernel<kCapacity>;
  FC_CUDA(FC_LAUNCH(kernel, dim3(blocks_for_chunks(kernel, table.chunks)), dim3(kTableThreads),
                    stream, table),
          "multi_copy of ", table.count, " segments");
  return taken;
}

}  // namespace

void load_multi_copy() {
  load_kernel(multi_copy_kernel<kSmallTable>);
  load_kernel(multi_copy_kernel<kMediumTable>);
  load_kernel(multi_copy_kernel<kMaxCopySegments>);
}

void launch_indirect_copy(const CopySegment* segments, int count, const uint64_t* sources,
                          cudaStream_t stream, const ChannelState* channel) {
  static_assert(kMaxIndirectCopies <= kSmallTable, "one table holds them");
  FC_CHECK(count >= 0 && count <= kMaxIndirectCopies, "indirect_copy: ", count, " segments");
  launch_table<kSmallTable>(segments, count, stream, channel, sources);
}

void launch_multi_copy(const CopySegment* segments, int count, cudaStream_t stream,
                       const ChannelState* channel) {
  FC_CHECK(count >= 0, "multi_copy: ", count, " segments");
  for (int done = 0; done < count;) {
    const int rest = count - done;
    const CopySegment* const next = segments + done;
    done += rest <= kSmallTable    ? launch_table<kSmallTable>(next, rest, stream, channel)
            : rest <= kMediumTable ? launch_table<kMediumTable>(next, rest, stream, channel)
                                   : launch_table<kMaxCopySegments>(next, rest, stream, channel);
  }
}

}  // namespace fastcomm
