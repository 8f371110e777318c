// The collectives of processes with a device each: meet, one batched kernel per rank, meet.
//
//   stage   copies data for peers into this rank's window, unless it lies in a pool that they have
//           mapped
//   open    all ranks have staged, and have called the same (engines/cuda/meeting.h)
//   work    pulls, or reduces, by one kernel that waits for nobody
//   close   all ranks have done their work
//   fetch   copies results out of this rank's window, unless peers have written them into its pool,
//           or out of all windows (PeerAreas::pushes, slices_from); in the launch that stages the
//           next round
//   spoil   after a failure overwrites floating-point results with NaN, since no host waits
//
// A message in pieces is gathered instead of staged, and scattered instead of fetched
// (engines/cuda/pieces.h).
//
// Short messages do all of it in one launch (engines/cuda/short.h), with the same failures.
//
// If only the two ranks of a pair know the sizes of their messages (engines/cuda/pairs.h), a rank
// has rounds for its own messages, and goes on meeting while others have more.
//
// A message larger than a window's area takes several rounds, each of all phases but the last. This
// holds even if no rank stages it, since no rank knows whether others do (engines/cuda/ends.h).
//
// Memory ordering. stage is before open in its stream, and work of peers after it: they read the
// staged data. work of peers is before their closing, and this rank's fetch, next stage, and
// anything its caller enqueues next are after it. An area that ranks fetch from (PeerAreas::out),
// whoever writes it, is written after the opening of a round, which every rank that has fetched
// from it reaches after its fetch of the previous round.
//
// Streams. A channel belongs to one stream at a time, and ranks use a channel for the same
// operations in the same order. Operations of one stream never deadlock. Those of several streams
// in different orders do not either if each stream has a hardware queue of its own that holds the
// launches before them; if not, their meetings run into their bounds.
//
// Failure. A call that is refused has enqueued nothing. For results that are not floating-point
// numbers, and for ranks that get none, only the record tells of a failure.
//
// Cost of a round: two launches of one block, and one each for staging and work if an operation has
// them, with one more after the last round for fetching; bytes into a rank as in
// engines/cuda/peer_plan.h, and each staged byte once within the device.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coll/call.h"
#include "engines/cuda/meeting.h"
#include "engines/cuda/pairs.h"
#include "engines/cuda/peer_plan.h"
#include "transport/ipc/peer_pool.h"
#include "transport/ipc/windows.h"

namespace fastcomm {

/// One thread at a time.
class PeerCollectives {
 public:
  struct Options {
    int channels = 1;                  // streams that may be at work at once; equal on all ranks
    uint64_t area_bytes = 32 << 20;    // of each of a channel's two areas; a multiple of 256, equal
    bool pushes = true;                // PeerAreas::pushes; equal
    uint64_t slices_from = 256 << 10;  // PeerAreas::slices_from; equal
    int blocks = 0;                    // most blocks of a kernel; 0: as default_blocks()
    uint64_t slot_bytes = 0;           // most bytes that a rank reads in a short operation; equal
    // The channel of operations that graphs capture and replay; -1: none; equal. Ranks replay the
    // same operations, but may have captured them in another order, with others between, or when
    // there was no pool yet. So its operations have no numbers, and their kernels always look up
    // the places of tensors. Two replays at once are a failure (ChannelGuard), if they overlap
    // between two operations' first and last meetings.
    int replayed = -1;
    WaitBounds bounds{60'000'000'000, nullptr};
  };

  /// Thread blocks that keep a link busy and leave most of the device to others; each has 16 KiB in
  /// transfer. Half of the device's processors; an eighth if windows lie in the host's memory.
  static int default_blocks(int device, bool by_host);

  /// Bytes of a rank's window.
  static uint64_t window_bytes(const Options& options, int size);

  /// `windows` outlives this object, and serves no other. No kernel of this object runs when it is
  /// destroyed. Raises Error: options or windows that do not fit, windows that have served another
  /// object, more than kMaxDeviceRanks ranks (kInvalidArgument); CUDA fails (kSystem).
  ///
  /// Tensors in `pool`, if there is one, are used in place; it may grow between two operations, the
  /// same two on all ranks, and outlives this object.
  PeerCollectives(DeviceWindows& windows, const Options& options, const PeerPool* pool = nullptr);
  PeerCollectives(const PeerCollectives&) = delete;
  PeerCollectives& operator=(const PeerCollectives&) = delete;
  ~PeerCollectives();

  /// Enqueues an operation on a stream of the windows' device. The call's memory is on that device,
  /// and lives until the stream has done the operation. `timeout_ns`, unless 0, replaces that of
  /// Options::bounds. Can be captured in a graph. Raises Error, with nothing enqueued: no kernel
  /// for it (kUnsupported), memory that is not aligned to its elements, a channel in which a launch
  /// has failed (kInvalidArgument). A launch that fails (kSystem) leaves the peers waiting up to
  /// their bounds, and makes the channel useless. Returns the sequence number told to peers, 0 for
  /// one that graphs replay.
  uint64_t enqueue(const Call& call, int channel, cudaStream_t stream, uint64_t timeout_ns = 0);
  /// What enqueue() returns next for a channel that graphs do not replay. Not beside it.
  uint64_t next_number(int channel) const { return channels_[channel].operations; }
  /// True if such an operation is one launch, besides those that gather and scatter a message in
  /// pieces; the same on all ranks.
  bool is_one_launch(const Call& call) const;
  /// True if there are kernels for such a reduction; the same on all ranks.
  bool reduces(DType dtype, ReduceOp op) const;

  /// The record of a channel's failure. Any thread may read it; it is complete when `wait.failure`,
  /// read with acquire, is not kNone.
  const MeetingRecord& record(int channel) const { return records_[channel]; }

 private:
  struct Channel {
    MeetingPlace place;
    PeerAreas areas;
    PeerAreas slots;  // the first of each rank's two
    uint64_t* found;  // kMostEnds words in device memory: addresses, or the most rounds of any rank
    bool replayed = false;  // Options::replayed
    uint64_t operations = 0;
    bool broken = false;  // a launch has failed: an opening now would be taken for the closing
  };

  void make_channels(DeviceWindows& windows);
  void release() noexcept;

  /// The places of this rank's tensors, if kernels look up those of all ranks.
  OwnTensors places_of(const Call& call, const MeetingPlace& place) const;
  void run_at_once(const Call& call, const CallHeader& header, const Channel& channel,
                   const WaitBounds& bounds, cudaStream_t stream);
  /// Enqueues the rounds of this rank's messages, and meetings for the further rounds of peers.
  void run_pairs(const Call& call, const CallHeader& header, const PairSizes& sizes,
                 const Channel& channel, const WaitBounds& bounds, cudaStream_t stream);
  /// Enqueues a round, except for the copies of `work.stage` and `work.fetch`.
  void run_round(const PeerRound& work, const Call& call, const CallHeader& header,
                 const Channel& channel, bool is_first, bool is_last, const WaitBounds& bounds,
                 cudaStream_t stream);

  const Options options_;
  const int device_;
  const int blocks_;
  const PeerPool* const pool_;
  ChannelState* states_ = nullptr;    // in device memory
  uint64_t* found_ = nullptr;         // the same
  MeetingRecord* records_ = nullptr;  // in pinned memory of the host
  std::vector<Channel> channels_;
};

}  // namespace fastcomm
