// The kernels of engines/cuda/short.h. Also compiled for the host, under the execution shim (FC_SHIM).
#include "engines/cuda/short.h"

#include <algorithm>

#include "core/cuda_host.h"
#include "core/error.h"
#include "engines/cuda/meeting_block.h"
#include "kernels/cuda/copy_block.h"
#include "kernels/cuda/reduce_chunks.h"
#include "kernels/cuda/residency.h"

namespace fastcomm {
namespace {

constexpr int kTermWords = record_words<SegmentHead>(kMaxReduceSources, 1);
using OneRecord = ReduceTable<kTermWords>;

/// A reduction out of either slot.
struct ShortTable : ReduceTerms {
  uint64_t words[2][kTermWords];
};

/// `bytes` of a copy; each end may be in a slot, of which the first is named.
struct Move {
  const char* from;
  char* to;
  bool from_slot;
};

struct ShortArgs {
  MeetingArgs meeting;
  uint64_t slot_bytes;
  uint64_t bytes;  // of a move
  int stages;      // from this rank's memory into its slot
  int pulls;       // into its results
  Move stage[kMaxDeviceRanks];
  Move pull[kMaxDeviceRanks];
  int results;
  uint32_t width;  // of their elements
  uint64_t nan;    // 0: none
  char* result[kMaxDeviceRanks];
  uint64_t count;    // elements of a result
  ShortTable table;  // without a record: nothing to reduce
};

/// Meets, with the own slot filled before. By all threads; true: everybody has come and staged.
FC_DEVICE bool meet(const ShortArgs& args, const ChannelState& state, uint64_t shift) {
  for (int i = 0; i < args.stages; ++i) {
    char* const to = args.stage[i].to + shift;
    FC_TOUCHES(to, args.bytes, true);
    copy_by_block(to, args.stage[i].from, args.bytes);
  }
  // All threads' stores are before what is released by the threads that say it.
  if (!FC_LEFT_OUT(Control::kNoBarrier)) __syncthreads();
  const Meeting meeting(args.meeting, state);
  meeting.say();
  const bool good = __syncthreads_and(meeting.hear());
  if (!good && threadIdx.x == 0) meeting.give_up();
  return good;
}

FC_DEVICE void pull(const ShortArgs& args, uint64_t shift) {
  for (int i = 0; i < args.pulls; ++i) {
    const Move& move = args.pull[i];
    const char* const from = move.from + (move.from_slot ? shift : 0);
    if (from == move.to) continue;
    if (move.from_slot) FC_TOUCHES(from, args.bytes, false);
    copy_by_block(move.to, from, args.bytes);
  }
}

/// What pulls, or only meets.
struct NoNumbers {};

template <class T>
FC_DEVICE void reduce(const ShortArgs& args, uint64_t parity) {
  if constexpr (!std::is_same<T, NoNumbers>::value) {
    const TableView<SegmentHead> table{args.table, args.table.words[parity]};
    for (int j = 0; j < table.terms.num_sources; ++j) {
      FC_TOUCHES(reinterpret_cast<const char*>(table.words[table.kHeadWords + j]),
                 args.count * sizeof(T), false);
    }
    reduce_chunks<T, T, 0>(table);
  }
}

template <class T>
__global__ void __launch_bounds__(kTableThreads, 1)
    short_kernel(const __grid_constant__ ShortArgs args) {
  ChannelState& there = *args.meeting.place.state;
  const ChannelState state = there;
  const uint64_t parity = FC_LEFT_OUT(Control::kOneSlot) ? 0 : state.shorts & 1;
  const uint64_t shift = parity * args.slot_bytes;
  // All threads alike: nobody writes the state before a barrier.
  const bool good = state.failed == 0 && meet(args, state, shift);
  if (good) {
    pull(args, shift);
    if (args.table.count != 0) reduce<T>(args, parity);
  } else if (args.nan != 0) {
    for (int i = 0; i < args.results; ++i) spoil(args.result[i], args.count, args.width, args.nan);
  }
  if (threadIdx.x != 0 || state.failed != 0) return;
  there = ChannelState{state.base + 1, state.operations + 1, good ? 0u : 1u, state.shorts + 1};
}

using Kernel = void (*)(ShortArgs);

/// nullptr: none.
Kernel kernel_for(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return short_kernel<float>;
    case DType::kBFloat16:
      return short_kernel<BFloat16>;
#if !defined(FC_FEW_KERNELS)
    case DType::kFloat16:
      return short_kernel<Half>;
    case DType::kFloat64:
      return short_kernel<double>;
    case DType::kInt8:
      return short_kernel<int8_t>;
    case DType::kUInt8:
      return short_kernel<uint8_t>;
    case DType::kInt16:
      return short_kernel<int16_t>;
    case DType::kInt32:
      return short_kernel<int32_t>;
    case DType::kInt64:
      return short_kernel<int64_t>;
    case DType::kBool:
      return short_kernel<Bool>;
#endif
    default:
      return nullptr;
  }
}

uint64_t chunk_of(DType dtype) {
  switch (dtype_size(dtype)) {
    case 1:
      return InFlight<int8_t, int8_t, 0>::kChunk;
    case 2:
      return InFlight<int16_t, int16_t, 0>::kChunk;
    case 4:
      return InFlight<float, float, 0>::kChunk;
    default:
      return InFlight<double, double, 0>::kChunk;
  }
}

/// What a kernel finds in a slot, which it names itself when it knows which one (FC_TOUCHES).
template <class T>
T* slot_view(T* pointer, Touch touch) {
#if defined(FC_SHIM)
  return device_view(shim::current_device, pointer, touch);
#else
  static_cast<void>(touch);
  return pointer;
#endif
}

void set_table(ShortArgs& args, const Call& call, const PeerRound& round) {
  const int size = static_cast<int>(round.sources.size());
  const ReduceSpec spec{call.dtype, call.dtype, size, 1, call.op == ReduceOp::kAvg ? size : 1};
  for (int parity = 0; parity < 2; ++parity) {
    OneRecord table;
    table.begin(spec);
    static_cast<ReduceTerms&>(args.table) = table;
    if (size == 0 || round.count == 0) continue;
    const ReduceSegment segment{round.sources.data(), round.destinations.data(), round.count};
    const SegmentHead head = head_with_shifts(segment, spec);
    const uint64_t chunk = chunk_of(call.dtype);
    table.add(head, segment, spec, (head.lead + round.count + chunk - 1) / chunk,
              [&](const char* source) {
                return slot_view(source + parity * args.slot_bytes, Touch::kRead);
              });
    static_cast<ReduceTerms&>(args.table) = table;
    std::copy_n(table.words, kTermWords, args.table.words[parity]);
  }
}

}  // namespace

bool reduces_short(DType dtype, ReduceOp op) {
  return (op == ReduceOp::kSum || op == ReduceOp::kAvg) && kernel_for(dtype) != nullptr;
}

void launch_short(const ShortPlace& place, const WaitBounds& bounds, const CallHeader& header,
                  const Call& call, const PeerRound& round, cudaStream_t stream) {
  ShortArgs args;  // not cleared: the kernel reads as many entries as it is told
  args.meeting = MeetingArgs{place.meeting, bounds, header, /*opens=*/true};
  args.meeting.place.state = kernel_view(place.meeting.state, sizeof(ChannelState), Touch::kWrite);
  args.slot_bytes = place.slot_bytes;
  args.bytes = call.bytes();
  args.stages = args.pulls = args.results = 0;
  for (const CopySegment& each : round.stage) {
    args.stage[args.stages++] = {
        kernel_view(static_cast<const char*>(each.src), each.bytes, Touch::kRead),
        slot_view(static_cast<char*>(each.dst), Touch::kWrite), false};
  }
  // What a rank pulls of its own lies where it was.
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
  set_table(args, call, round);
  const Kernel kernel =
      round.sources.empty() ? static_cast<Kernel>(short_kernel<NoNumbers>) : kernel_for(call.dtype);
  FC_CUDA(FC_LAUNCH(kernel, dim3(1), dim3(kTableThreads), stream, args), header.count,
          " elements of ", place.meeting.size, " ranks");
}

void load_short_kernels() {
  resident_blocks(short_kernel<NoNumbers>, kTableThreads);
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    const Kernel kernel = kernel_for(static_cast<DType>(dtype));
    if (kernel != nullptr) resident_blocks(kernel, kTableThreads);
  }
}

}  // namespace fastcomm
