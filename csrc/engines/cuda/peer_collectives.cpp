#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "engines/cuda/peer_collectives.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "coll/describe_call.h"
#include "coll/operations.h"
#include "core/beside_captures.h"
#include "core/device_guard.h"
#include "core/error.h"
#include "engines/cuda/pair_plan.h"
#include "engines/cuda/short.h"
#include "kernels/cuda/indirect_reduce.h"
#include "kernels/cuda/multi_combine.h"
#include "kernels/cuda/multi_reduce.h"
#include "kernels/cuda/residency.h"
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

ReduceSpec sum_of(const Call& call, int size, int destinations) {
  const int divisor = call.op == ReduceOp::kAvg ? size : 1;
  return {call.dtype, call.dtype, size, destinations, divisor, call.scale};
}

void check_reduction(const Call& call, int size) {
  if (is_of_multi_reduce(call.dtype, call.op)) return check_multi_reduce(sum_of(call, size, 1));
  FC_CHECK(call.scale == 1, reduce_op_name(call.op), " of ", dtype_name(call.dtype),
           " cannot be scaled");
  check_multi_combine({call.dtype, call.op, size, 1});
}

void reduce(const Call& call, const PeerRound& work, const MeetingPlace& place,
            const uint64_t* found, cudaStream_t stream) {
  const int size = static_cast<int>(work.sources.size());
  const int destinations = static_cast<int>(work.destinations.size());
  const ReduceSegment segment{work.sources.data(), work.destinations.data(), work.count};
  if (is_of_multi_reduce(call.dtype, call.op)) {
    const ReduceSpec spec = sum_of(call, size, destinations);
    return found != nullptr ? launch_indirect_reduce(segment, found, spec, stream, place.state)
                            : launch_multi_reduce(&segment, 1, spec, stream, place.state);
  }
  const CombineSpec spec{call.dtype, call.op, size, destinations, call.factor};
  launch_multi_combine(&segment, 1, spec, stream, place.state);
}

/// Names this rank's own tensors for the launch that follows, since no kernel does (FC_TOUCHES
/// names memory of several processes).
void name_own_ends(const PeerRound& work, uint64_t element, const PeerPool& pool) {
  for (size_t i = 0; i < work.ends.size(); ++i) {
    const PeerEnd& end = work.ends[i];
    const uint64_t bytes = work.pull.empty() ? work.count * element : work.pull[i].bytes;
    if (end.rank >= 0 || pool.find(end.staged, bytes)) continue;
    static_cast<void>(kernel_view(end.staged, bytes, end.is_result ? Touch::kWrite : Touch::kRead));
  }
}

/// The ends as seen by the device.
std::vector<PeerEnd> views_of(std::vector<PeerEnd> ends, int device) {
  for (PeerEnd& end : ends) {
    end.staged = device_view(device, end.staged, end.is_result ? Touch::kWrite : Touch::kRead);
  }
  return ends;
}

/// Raises the errors of a launch, except for those of CUDA itself.
void check_call(const Call& call, int size, const std::vector<DeviceResult>& results) {
  if (call.op != ReduceOp::kNone) check_reduction(call, size);
  if (call.pieces != nullptr) check_pieces(*call.pieces, call.dtype);
  if (gathers_shards(call)) {
    FC_CHECK(call.shards != nullptr && call.shards->size() == static_cast<size_t>(size),
             "gather_shards: not the shards of ", size, " ranks");
    for (const MessagePieces& pieces : *call.shards) check_pieces(pieces, call.dtype);
  }
  for (const DeviceResult& result : results) {
    FC_CHECK(reinterpret_cast<uintptr_t>(result.memory) % dtype_size(call.dtype) == 0,
             describe_call(make_header(call, 0, 0)), ": a result is not aligned to its elements");
  }
}

}  // namespace

int PeerCollectives::default_blocks(int device, bool by_host) {
  int processors = 0;
  FC_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
          "collectives between devices");
  return std::max(2, processors / (by_host ? 8 : 2));
}

uint64_t PeerCollectives::window_bytes(const Options& options, int size) {
  return options.channels * channel_bytes(options, size);
}

PeerCollectives::PeerCollectives(DeviceWindows& windows, const Options& options,
                                 const PeerPool* pool)
    : options_(options),
      device_(windows.device()),
      blocks_(options.blocks != 0 ? options.blocks : default_blocks(device_, false)),
      pool_(pool) {
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
  load_pairs_kernels();
  load_short_kernels();
  load_multi_copy();
  load_multi_reduce(size);
  load_indirect_reduce(size);
  load_multi_combine();
  load_pieces_kernels();
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
  enqueue_and_wait("states of channels", [&](cudaStream_t stream) {
    return cudaMemsetAsync(states_, 0, states, stream);
  });
  FC_CUDA(cudaMalloc(&memory, options_.channels * kMostEnds * sizeof(uint64_t)), "ends of ",
          options_.channels, " channels");
  found_ = static_cast<uint64_t*>(memory);
  for (int c = 0; c < options_.channels; ++c) {
    Channel& channel = channels_.emplace_back();
    channel.replayed = c == options_.replayed;
    channel.place = MeetingPlace{windows.rank(), size, {}, states_ + c, records_ + c};
    channel.place.guard.is_on = channel.replayed && !FC_LEFT_OUT(Control::kNoGuard);
    channel.found = found_ + c * kMostEnds;
    channel.areas = PeerAreas{
        windows.rank(), size, options_.area_bytes, {}, {}, options_.pushes, options_.slices_from};
    channel.slots = PeerAreas{windows.rank(), size, aligned(options_.slot_bytes), {}, {}};
    for (int peer = 0; peer < size; ++peer) {
      char* const begin = windows.window(peer) + c * channel_bytes(options_, size);
      // The address as seen by device code: the meeting's kernel gets it unchanged.
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
    const BesideCaptures others(device_);  // any thread may release the last work, at any time
    if (found_ != nullptr) forget_error(cudaFree(found_));
    if (states_ != nullptr) forget_error(cudaFree(states_));
    if (records_ != nullptr) forget_error(cudaFreeHost(records_));
  } catch (const Error&) {
    // The device is lost, and its memory with it.
  }
}

bool PeerCollectives::reduces(DType dtype, ReduceOp op) const {
  if (why_no_reduction(dtype, op) != nullptr) return false;
  try {
    Call call;
    call.dtype = dtype;
    call.op = op;
    check_reduction(call, channels_[0].place.size);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    return false;
  }
  return true;
}

bool PeerCollectives::is_one_launch(const Call& call) const {
  // An area gathers the pieces. Ranks without pieces must decide alike.
  if (row_of(call.kind).takes_list && call.bytes() > options_.area_bytes) return false;
  return is_short(call, channels_[0].place.size, options_.slot_bytes) &&
         (call.op == ReduceOp::kNone || reduces_short(call.dtype, call.op));
}

uint64_t PeerCollectives::enqueue(const Call& call, int channel, cudaStream_t stream,
                                  uint64_t timeout_ns) {
  const DeviceGuard guard(device_);
  const GridLimit limit(blocks_);
  Channel& own = channels_.at(channel);
  FC_CHECK(!own.broken, "channel ", channel,
           " is of no use: an earlier operation could not be launched whole. Form a new group");
  // Every refusal comes before this line: peers would take the next opening for this closing.
  const bool at_once = is_one_launch(call);
  const bool in_pairs = is_of_pairs(call.kind);
  const PairSizes sizes = in_pairs ? pair_sizes(call, own.areas) : PairSizes{};
  const uint64_t rounds = at_once ? 1 : in_pairs ? sizes.rounds : number_of_rounds(call, own.areas);
  const std::vector<DeviceResult> results =
      in_pairs ? results_of_pairs(call) : results_of(call, own.place.rank);
  check_call(call, own.place.size, results);
  own.broken = true;
  const bool looks = own.replayed || (pool_ != nullptr && pool_->segments() != 0);
  const OwnTensors places = at_once || !looks ? OwnTensors{} : places_of(call, own.place);
  const Algorithm algorithm = at_once        ? Algorithm::kOneShot
                              : places.finds ? Algorithm::kInPlace
                                             : Algorithm::kPipelined;
  const uint64_t number = own.replayed ? 0 : own.operations++;
  CallHeader header = make_header(call, number, static_cast<uint8_t>(algorithm));
  header.where = places.given;
  header.form = places.result;
  WaitBounds bounds = options_.bounds;
  if (timeout_ns != 0) bounds.timeout_ns = timeout_ns;
  if (at_once) {
    run_at_once(call, header, own, bounds, stream);
    own.broken = false;
    return number;
  }
  if (in_pairs) run_pairs(call, header, sizes, own, bounds, stream);
  std::vector<CopySegment> fetch;
  for (uint64_t round = 0; round < rounds && !in_pairs; ++round) {
    PeerRound work = round_of(call, own.areas, round, places);
    // In one launch with the previous round's results: by way of the host's memory one goes up
    // while the other goes down.
    fetch.insert(fetch.end(), work.stage.begin(), work.stage.end());
    copy(fetch, own.place, stream);
    run_round(work, call, header, own, round == 0, round + 1 == rounds, bounds, stream);
    fetch = std::move(work.fetch);
  }
  copy(fetch, own.place, stream);
  launch_spoil(own.place, call.dtype, results, stream);
  if (call.pieces != nullptr) spoil_pieces(own.place, *call.pieces, stream);
  if (gathers_shards(call)) spoil_shards(own.place, *call.shards, own.place.rank, stream);
  own.broken = false;
  return number;
}

void PeerCollectives::run_at_once(const Call& call, const CallHeader& header,
                                  const Channel& channel, const WaitBounds& bounds,
                                  cudaStream_t stream) {
  const ShortPlace place{channel.place.in_operation(true, true), channel.slots.bytes};
  if (call.pieces == nullptr) {
    return launch_short(place, bounds, header, call, short_round_of(call, channel.slots), stream);
  }
  // In one piece, in an area that no peer looks at: peers have read it before they closed its
  // previous operation.
  const PiecesSpan all{call.pieces.get(), 0, call.count, channel.areas.in[channel.place.rank]};
  Call whole = call;
  whole.pieces = nullptr;
  whole.input = whole.output = all.window;
  gather_pieces({all}, call.dtype, stream, channel.place.state);
  launch_short(place, bounds, header, whole, short_round_of(whole, channel.slots), stream);
  // Also after a failure: then it is NaN.
  scatter_pieces({all}, call.dtype, stream);
}

void PeerCollectives::run_pairs(const Call& call, const CallHeader& header, const PairSizes& sizes,
                                const Channel& channel, const WaitBounds& bounds,
                                cudaStream_t stream) {
  const bool knows_all = knows_all_rounds(call, channel.place.size);
  for (uint64_t round = 0; round < sizes.rounds; ++round) {
    const bool is_last = knows_all && round + 1 == sizes.rounds;
    const MeetingPlace opening = channel.place.in_operation(round == 0, false);
    const PeerRound work = round_of_pairs(call, channel.areas, round);
    copy(work.stage, opening, stream);
    round == 0 ? launch_opening_of_pairs(opening, bounds, header, sizes, channel.found, stream)
               : launch_opening(opening, bounds, header, stream);
    copy(work.pull, opening, stream);
    launch_closing(channel.place.in_operation(false, is_last), bounds, header, stream);
  }
  if (knows_all) return;
  launch_rest_of_pairs(channel.place.in_operation(false, true), bounds, header, sizes,
                       channel.found, stream);
}

OwnTensors PeerCollectives::places_of(const Call& call, const MeetingPlace& place) const {
  OwnTensors places;
  const bool others = gathers_shards(call) ||
                      (call.op != ReduceOp::kNone && !is_of_multi_reduce(call.dtype, call.op));
  if (pool_ == nullptr || others) return places;
  places.finds = moves_data(call);
  const auto look = [&](const PeerTensor& tensor) -> uint64_t {
    // Alignment that kernels expect of staged tensors.
    if (tensor.bytes == 0 || reinterpret_cast<uintptr_t>(tensor.memory) % kPlaceAlignment != 0)
      return 0;
    const auto found = pool_->find(tensor.memory, tensor.bytes);
    return found ? place_in_pool(found->segment, found->offset) : 0;
  };
  if (!places.finds) return places;
  places.given = look(given_of(call, place.rank, place.size));
  places.result = look(shared_result_of(call, place.rank));
  return places;
}

void PeerCollectives::run_round(const PeerRound& work, const Call& call, const CallHeader& header,
                                const Channel& channel, bool is_first, bool is_last,
                                const WaitBounds& bounds, cudaStream_t stream) {
  const MeetingPlace place = channel.place.in_operation(is_first, false);
  gather_pieces(work.gather, call.dtype, stream, place.state);
  const bool finds = header.algorithm == static_cast<uint8_t>(Algorithm::kInPlace);
  if (finds) {
    // There may be more at replay.
    const int segments = channel.replayed ? PeerPool::kMostSegments : pool_->segments();
    launch_finding(place, {pool_->table(), segments, channel.found}, views_of(work.ends, device_),
                   bounds, header, stream);
    name_own_ends(work, dtype_size(call.dtype), *pool_);
    launch_indirect_copy(work.pull.data(), static_cast<int>(work.pull.size()), channel.found,
                         stream, place.state);
  } else {
    launch_opening(place, bounds, header, stream);
    copy(work.pull, place, stream);
    scatter_pieces(work.pull_shards, call.dtype, stream, place.state);
  }
  if (!work.sources.empty()) reduce(call, work, place, finds ? channel.found : nullptr, stream);
  launch_closing(channel.place.in_operation(false, is_last), bounds, header, stream);
  scatter_pieces(work.scatter, call.dtype, stream, place.state);
}

}  // namespace fastcomm
#endif
