#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "engines/cuda/peer_collectives.h"

#include <cstring>
#include <string>

#include "core/error.h"
#include "engines/cuda/short.h"
#include "kernels/cuda/multi_combine.h"
#include "kernels/cuda/multi_reduce.h"
#include "kernels/reduce_cpu.h"

namespace fastcomm {
namespace {

uint64_t aligned(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

uint64_t lines_bytes(int size) { return aligned(meeting_lines_bytes(size)); }

uint64_t channel_bytes(const PeerCollectives::Options& options, int size) {
  return lines_bytes(size) + 2 * options.area_bytes + 2 * aligned(options.slot_bytes);
}

void copy(const std::vector<CopySegment>& segments, const MeetingPlace& place,
          cudaStream_t stream) {
  launch_multi_copy(segments.data(), static_cast<int>(segments.size()), stream, place.state);
}

ReduceSpec sum_of(DType dtype, ReduceOp op, int size, int destinations) {
  return {dtype, dtype, size, destinations, op == ReduceOp::kAvg ? size : 1};
}

void check_reduction(DType dtype, ReduceOp op, int size) {
  if (is_of_multi_reduce(dtype, op)) return check_multi_reduce(sum_of(dtype, op, size, 1));
  check_multi_combine({dtype, op, size, 1});
}

void reduce(const Call& call, const PeerRound& work, const MeetingPlace& place,
            cudaStream_t stream) {
  const int size = static_cast<int>(work.sources.size());
  const int destinations = static_cast<int>(work.destinations.size());
  const ReduceSegment segment{work.sources.data(), work.destinations.data(), work.count};
  if (is_of_multi_reduce(call.dtype, call.op)) {
    const ReduceSpec spec = sum_of(call.dtype, call.op, size, destinations);
    return launch_multi_reduce(&segment, 1, spec, stream, place.state);
  }
  const CombineSpec spec{call.dtype, call.op, size, destinations, call.factor};
  launch_multi_combine(&segment, 1, spec, stream, place.state);
}

/// Raises what a launch would raise, but for a failure of CUDA's own.
void check_call(const Call& call, int size, const std::vector<DeviceResult>& results) {
  if (call.op != ReduceOp::kNone) check_reduction(call.dtype, call.op, size);
  for (const DeviceResult& result : results) {
    FC_CHECK(reinterpret_cast<uintptr_t>(result.memory) % dtype_size(call.dtype) == 0,
             describe_call(make_header(call, 0, 0)), ": a result is not aligned to its elements");
  }
}

/// ", rank 2 has not come"
std::string missing_text(const MeetingRecord& record) {
  std::string text;
  for (int peer = 0; peer < kMaxDeviceRanks; ++peer) {
    if (record.wait.missing >> peer & 1) text += concat(", rank ", peer, " has not come");
  }
  return text;
}

}  // namespace

uint64_t PeerCollectives::window_bytes(const Options& options, int size) {
  return options.channels * channel_bytes(options, size);
}

PeerCollectives::PeerCollectives(DeviceWindows& windows, const Options& options)
    : options_(options), device_(windows.device()) {
  const int size = windows.size();
  FC_CHECK(size <= kMaxDeviceRanks, size, " ranks, but at most ", kMaxDeviceRanks,
           " use each other's devices");
  FC_CHECK(options.channels >= 1 && options.area_bytes > 0 && options.area_bytes % 256 == 0,
           options.channels, " channels with areas of ", options.area_bytes, " bytes");
  FC_CHECK(window_bytes(options, size) <= windows.bytes(), "windows of ", windows.bytes(),
           " bytes, ", window_bytes(options, size), " are needed");
  windows.take();
  const DeviceGuard guard(device_);
  // A kernel that is loaded while a meeting waits may wait for it.
  load_meeting_kernels();
  load_short_kernels();
  load_multi_copy();
  load_multi_reduce(size);
  load_multi_combine();
  try {
    make_channels(windows);
  } catch (...) {
    release();
    throw;
  }
}

PeerCollectives::~PeerCollectives() { release(); }

void PeerCollectives::make_channels(DeviceWindows& windows) {
  const int size = windows.size();
  const size_t states = options_.channels * sizeof(ChannelState);
  const size_t records = options_.channels * sizeof(MeetingRecord);
  void* memory = nullptr;
  FC_CUDA(cudaHostAlloc(&memory, records, cudaHostAllocMapped), "records of ", options_.channels,
          " channels");
  std::memset(memory, 0, records);
  records_ = static_cast<MeetingRecord*>(memory);
  FC_CUDA(cudaMalloc(&memory, states), "states of ", options_.channels, " channels");
  states_ = static_cast<ChannelState*>(memory);
  cudaStream_t stream = nullptr;
  FC_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  const cudaError_t set = cudaMemsetAsync(states_, 0, states, stream);
  const cudaError_t waited = cudaStreamSynchronize(stream);
  forget_error(cudaStreamDestroy(stream));
  FC_CUDA(set, "states of channels");
  FC_CUDA(waited, "states of channels");
  for (int c = 0; c < options_.channels; ++c) {
    Channel& channel = channels_.emplace_back();
    channel.place = MeetingPlace{windows.rank(), size, {}, states_ + c, records_ + c};
    channel.areas = PeerAreas{windows.rank(), size, options_.area_bytes, {}, {}, options_.pushes};
    channel.slots = PeerAreas{windows.rank(), size, aligned(options_.slot_bytes), {}, {}};
    for (int peer = 0; peer < size; ++peer) {
      char* const begin = windows.window(peer) + c * channel_bytes(options_, size);
      // What device code finds there: the meeting's kernel gets the address as it is.
      channel.place.lines[peer] =
          reinterpret_cast<MeetingLine*>(device_view(device_, begin, Touch::kWrite));
      char* const areas = begin + lines_bytes(size) + 2 * channel.slots.bytes;
      channel.slots.in.push_back(begin + lines_bytes(size));
      channel.areas.in.push_back(areas);
      channel.areas.out.push_back(areas + options_.area_bytes);
    }
  }
}

void PeerCollectives::release() noexcept {
  try {
    const DeviceGuard guard(device_);
    if (states_ != nullptr) forget_error(cudaFree(states_));
    if (records_ != nullptr) forget_error(cudaFreeHost(records_));
  } catch (const Error&) {
    // The device is lost, and its memory with it.
  }
}

bool PeerCollectives::reduces(DType dtype, ReduceOp op) const {
  if (why_no_reduction(dtype, op) != nullptr) return false;
  try {
    check_reduction(dtype, op, channels_[0].place.size);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    return false;
  }
  return true;
}

bool PeerCollectives::is_one_launch(const Call& call) const {
  return is_short(call, channels_[0].place.size, options_.slot_bytes) &&
         (call.op == ReduceOp::kNone || reduces_short(call.dtype, call.op));
}

void PeerCollectives::enqueue(const Call& call, int channel, cudaStream_t stream,
                              uint64_t timeout_ns) {
  const DeviceGuard guard(device_);
  Channel& own = channels_.at(channel);
  FC_CHECK(!own.broken, "channel ", channel,
           " is of no use: an earlier operation could not be launched whole. Form a new group");
  // All that can be refused is refused here: peers would take the next opening for this closing.
  const bool at_once = is_one_launch(call);
  const uint64_t rounds = at_once ? 1 : number_of_rounds(call, own.areas);
  const std::vector<DeviceResult> results = results_of(call, own.place.rank);
  check_call(call, own.place.size, results);
  own.broken = true;
  const CallHeader header =
      make_header(call, own.operations++,
                  static_cast<uint8_t>(at_once ? Algorithm::kOneShot : Algorithm::kPipelined));
  WaitBounds bounds = options_.bounds;
  if (timeout_ns != 0) bounds.timeout_ns = timeout_ns;
  if (at_once) {
    launch_short({own.place, own.slots.bytes}, bounds, header, call,
                 short_round_of(call, own.slots), stream);
    own.broken = false;
    return;
  }
  for (uint64_t round = 0; round < rounds; ++round) {
    run_round(call, header, own, round, bounds, stream);
  }
  launch_spoil(own.place, call.dtype, results, stream);
  own.broken = false;
}

void PeerCollectives::run_round(const Call& call, const CallHeader& header, const Channel& channel,
                                uint64_t round, const WaitBounds& bounds, cudaStream_t stream) {
  const PeerRound work = round_of(call, channel.areas, round);
  copy(work.stage, channel.place, stream);
  launch_opening(channel.place, bounds, header, stream);
  copy(work.pull, channel.place, stream);
  if (!work.sources.empty()) reduce(call, work, channel.place, stream);
  launch_closing(channel.place, bounds, header, stream);
  copy(work.fetch, channel.place, stream);
}

std::string describe_failure(const MeetingRecord& record, int rank) {
  // Acquire: the rest of the record is complete once this is there.
  const auto why = static_cast<WaitFailure>(load_flag(&record.wait.failure));
  if (why == WaitFailure::kNone) return "";
  const std::string call = describe_call(record.own);
  switch (why) {
    case WaitFailure::kNone:
      return "";
    case WaitFailure::kTimeout:
      return concat(call, ": rank ", rank, " has waited in vain", missing_text(record));
    case WaitFailure::kAborted:
      return concat(call, ": rank ", rank, " was told to give up");
    case WaitFailure::kMismatch:
      return concat("rank ", rank, " called ", call, ", rank ", record.wait.peer, " called ",
                    describe_call(record.other));
    case WaitFailure::kPeerFailed:
      return concat(call, ": rank ", record.wait.peer, " has given up", missing_text(record));
  }
  return "";
}

}  // namespace fastcomm
#endif
