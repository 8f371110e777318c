// The launches of engines/cuda/short.h, and its kernels for sums. Also compiled for the host, under
// the execution shim (FC_SHIM).
#include "engines/cuda/short.h"

#include <algorithm>

#include "core/cuda_host.h"
#include "core/error.h"
#include "engines/cuda/short_block.h"
#include "kernels/cuda/kernel_types.h"
#include "kernels/cuda/multi_combine.h"
#include "kernels/reduce_cpu.h"

namespace fastcomm {
namespace {

using OneRecord = ReduceTable<kShortWords>;

ShortKernel sum_for(DType dtype) {
  return for_sum_type<ShortKernel>(dtype, [](auto tag) {
    using T = typename decltype(tag)::Type;
    return ShortKernel{short_kernel<ShortSums<T>>, InFlight<T, T, 0>::kChunk};
  });
}

ShortKernel kernel_for(DType dtype, ReduceOp op) {
  if (op == ReduceOp::kNone) return {short_kernel<NoNumbers>, 0};
  if (why_no_reduction(dtype, op) != nullptr) return {};
  if (is_of_multi_reduce(dtype, op)) return sum_for(dtype);
  return short_combination_for(as_kernels_know({dtype, op, 1, 1}).dtype);
}

/// A slot's memory as seen by a kernel, which names it itself once it knows the slot (FC_TOUCHES).
template <class T>
T* slot_view(T* pointer, Touch touch) {
#if defined(FC_SHIM)
  return device_view(shim::current_device, pointer, touch);
#else
  static_cast<void>(touch);
  return pointer;
#endif
}

void set_table(ShortArgs& args, const Call& call, const PeerRound& round, uint64_t chunk) {
  const CombineSpec spec{call.dtype, call.op, static_cast<int>(round.sources.size()), 1,
                         call.factor};
  ReduceSpec sizes = sizes_of(spec);
  sizes.scale = call.scale;
  args.combination = terms_of(spec);
  args.table.begin(sizes);
  if (round.sources.empty() || round.count == 0) return;
  const ReduceSegment segment{round.sources.data(), round.destinations.data(), round.count};
  const SegmentHead head = is_of_multi_reduce(call.dtype, call.op)
                               ? head_with_shifts(segment, sizes)
                               : head_of_sources(segment, sizes);
  for (int parity = 0; parity < 2; ++parity) {
    OneRecord table;
    table.begin(sizes);
    table.add(head, segment, sizes, chunks_of(head, chunk), [&](const char* source) {
      return slot_view(source + parity * args.slot_bytes, Touch::kRead);
    });
    static_cast<ReduceTerms&>(args.table) = table;
    std::copy_n(table.words, kShortWords, args.table.words[parity]);
  }
}

}  // namespace

bool reduces_short(DType dtype, ReduceOp op) {
  return op != ReduceOp::kNone && kernel_for(dtype, op).kernel != nullptr;
}

void launch_short(const ShortPlace& place, const WaitBounds& bounds, const CallHeader& header,
                  const Call& call, const PeerRound& round, cudaStream_t stream) {
  ShortArgs args;  // not cleared: the kernel reads as many entries as it is told
  args.meeting = meeting_args(place.meeting, bounds, header, /*opens=*/true);
  args.slot_bytes = place.slot_bytes;
  args.bytes = call.bytes();
  args.stages = args.pulls = args.results = 0;
  for (const CopySegment& each : round.stage) {
    args.stage[args.stages++] = {
        kernel_view(static_cast<const char*>(each.src), each.bytes, Touch::kRead),
        slot_view(static_cast<char*>(each.dst), Touch::kWrite), false};
  }
  // This rank's pull from itself stays in place.
  for (const CopySegment& each : round.pull) {
    const auto* const from = static_cast<const char*>(each.src);
    const bool own = std::any_of(round.stage.begin(), round.stage.end(),
                                 [&](const CopySegment& staged) { return staged.src == from; });
    args.pull[args.pulls++] = {
        own ? kernel_view(from, each.bytes, Touch::kRead) : slot_view(from, Touch::kRead),
        kernel_view(static_cast<char*>(each.dst), each.bytes, Touch::kWrite), !own};
  }
  args.nan = nan_of(call.dtype);
  args.width = static_cast<uint32_t>(dtype_size(call.dtype));
  args.count = call.count;
  for (const DeviceResult& result : results_of(call, place.meeting.rank)) {
    args.result[args.results++] =
        kernel_view(static_cast<char*>(result.memory), result.count * args.width, Touch::kWrite);
  }
  // A rank that gets nothing from a reduction has no sources.
  const ShortKernel chosen =
      kernel_for(call.dtype, round.sources.empty() ? ReduceOp::kNone : call.op);
  set_table(args, call, round, chosen.chunk);
  FC_CUDA(FC_LAUNCH(chosen.kernel, dim3(1), dim3(kTableThreads), stream, args), header.count,
          " elements of ", place.meeting.size, " ranks");
}

void load_short_kernels() {
  for (int op = 0; op < kNumReduceOps; ++op) {
    for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
      load_kernel(kernel_for(static_cast<DType>(dtype), static_cast<ReduceOp>(op)).kernel);
    }
  }
}

}  // namespace fastcomm
