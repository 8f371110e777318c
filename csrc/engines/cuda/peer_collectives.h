// The collectives of processes with a device each: meet, one batched kernel a rank, meet.
//
//   stage   copies what peers read into this rank's window
//   open    everybody has staged, and has called the same (engines/cuda/meeting.h)
//   work    pulls, or reduces, by one kernel that waits for nobody
//   close   nobody reads or writes a window any more
//   fetch   copies results out of this rank's window
//   spoil   after a failure overwrites floating-point results with NaN, since nobody waits
//
// Short messages do all of it in one launch (engines/cuda/short.h), with the same failures.
//
// A message larger than a window's area takes several rounds of the first five.
//
// Memory ordering. stage is before open in its stream, and work of peers behind it: they read what was
// staged. work of peers is before their closing, and this rank's fetch, next stage, and whatever its
// caller enqueues next are behind it. What is written into an "out" is written behind the opening
// of a round, which everybody who has fetched from it reaches behind his fetch of the round before.
//
// Streams. A channel belongs to one stream at a time, and ranks use a channel for the same operations in
// the same order. Operations of one stream never deadlock; those of several in different orders only
// where all of them are on hardware queues of their own, and the launches before them fit into those;
// else their meetings run into their bounds.
//
// Failure. A call that is refused has enqueued nothing. Results that are no floating-point numbers, and
// ranks that get none, have the record alone to tell them.
//
// Cost of a round: two launches of one block, and one each for staging, work and fetching as far as an
// operation has them; bytes into a rank as in engines/cuda/peer_plan.h, and each staged byte once
// within the device.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coll/call.h"
#include "engines/cuda/meeting.h"
#include "engines/cuda/peer_plan.h"
#include "transport/ipc/windows.h"

namespace fastcomm {

/// One thread at a time.
class PeerCollectives {
 public:
  struct Options {
    int channels = 1;                // streams that may be at work at once; equal on all ranks
    uint64_t area_bytes = 32 << 20;  // of each of a channel's two areas; a multiple of 256, equal
    bool pushes = true;              // PeerAreas::pushes; equal
    uint64_t slot_bytes = 0;         // what a rank reads in a short operation at most; equal
    WaitBounds bounds{60'000'000'000, nullptr};
  };

  /// What a rank's window has to hold.
  static uint64_t window_bytes(const Options& options, int size);

  /// `windows` outlives it, and serves no other one; no kernel of it is at work when it goes. Raises
  /// Error: options or windows that do not fit, more than kMaxDeviceRanks (kInvalidArgument); CUDA fails
  /// (kSystem).
  PeerCollectives(DeviceWindows& windows, const Options& options);
  PeerCollectives(const PeerCollectives&) = delete;
  PeerCollectives& operator=(const PeerCollectives&) = delete;
  ~PeerCollectives();

  /// Enqueues an operation, whose meetings have the options' bound or their own, on a stream of the windows'
  /// device; memory of the call is that device's, and lives until the stream has passed. Can be captured in a graph. Raises Error, with nothing enqueued:
  /// no kernel for it (kUnsupported), memory that is not aligned to its elements, a channel in which a
  /// launch has failed (kInvalidArgument). A launch that fails (kSystem) leaves the peers waiting for
  /// their bounds, and the channel is of no use any more.
  void enqueue(const Call& call, int channel, cudaStream_t stream, uint64_t timeout_ns = 0);
  /// Whether such an operation is one launch; the same on all ranks.
  bool is_one_launch(const Call& call) const;
  /// Whether there are kernels for such a reduction; the same on all ranks.
  bool reduces(DType dtype, ReduceOp op) const;

  /// Any thread. Complete when `wait.failure`, read with acquire, is not kNone.
  const MeetingRecord& record(int channel) const { return records_[channel]; }

 private:
  struct Channel {
    MeetingPlace place;
    PeerAreas areas;
    PeerAreas slots;  // the first of two each
    uint64_t operations = 0;
    bool broken = false;  // a launch has failed: an opening now would be taken for the closing
  };

  void make_channels(DeviceWindows& windows);
  void release() noexcept;

  void run_round(const Call& call, const CallHeader& header, const Channel& channel, uint64_t round,
                 const WaitBounds& bounds, cudaStream_t stream);

  const Options options_;
  const int device_;
  ChannelState* states_ = nullptr;    // of the device
  MeetingRecord* records_ = nullptr;  // of the host
  std::vector<Channel> channels_;
};

/// "rank 2 has not come to all_reduce(...), sequence 7"; "" if the record says nothing.
std::string describe_failure(const MeetingRecord& record, int rank);

}  // namespace fastcomm
