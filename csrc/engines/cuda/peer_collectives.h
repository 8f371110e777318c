// The collectives of processes with a device each: meet, one batched kernel a rank, meet.
//
//   stage   copies what peers read into this rank's window
//   open    everybody has staged, and has called the same (engines/cuda/meeting.h)
//   work    pulls, or reduces, by one kernel that waits for nobody
//   close   nobody reads or writes a window any more
//   fetch   copies results out of this rank's window
//   spoil   after a failure overwrites floating-point results with NaN, since nobody waits
//
// A message larger than a window's area takes several rounds of the first five; the ring is empty
// between two of them, so a round costs two meetings more.
//
// Memory ordering. stage is before open in its stream, and work of peers behind it: they read what was
// staged. work of peers is before their closing, and this rank's fetch, next stage, and whatever its
// caller enqueues next are behind it. What peers write into an "out" they write behind the opening
// of a round, which its owner reaches behind his fetch of the round before.
//
// Streams. A channel belongs to one stream at a time, and ranks use a channel for the same operations in
// the same order. Operations of one stream never deadlock; those of several in different orders only
// where all of them are on hardware queues of their own, else their meetings run into their bounds.
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
    WaitBounds bounds{60'000'000'000, nullptr};
  };

  /// What a rank's window has to hold.
  static uint64_t window_bytes(const Options& options, int size);

  /// `windows` outlives it; no kernel of it is at work when it goes. Raises Error: options that do not
  /// fit, more than kMaxDeviceRanks (kInvalidArgument); CUDA fails (kSystem).
  PeerCollectives(const DeviceWindows& windows, const Options& options);
  PeerCollectives(const PeerCollectives&) = delete;
  PeerCollectives& operator=(const PeerCollectives&) = delete;
  ~PeerCollectives();

  /// Enqueues an operation on a stream of the windows' device; memory of the call is that device's, and
  /// lives until the stream has passed. Can be captured in a graph. Raises Error: no kernel for it
  /// (kUnsupported), a launch fails (kSystem).
  void enqueue(const Call& call, int channel, cudaStream_t stream);

  /// Any thread. Complete when `wait.failure`, read with acquire, is not kNone.
  const MeetingRecord& record(int channel) const { return records_[channel]; }

 private:
  struct Channel {
    MeetingPlace place;
    PeerAreas areas;
    uint64_t operations = 0;
  };

  void run_round(const Call& call, const CallHeader& header, const Channel& channel, uint64_t round,
                 cudaStream_t stream);

  const Options options_;
  const int device_;
  ChannelState* states_ = nullptr;    // of the device
  MeetingRecord* records_ = nullptr;  // of the host
  std::vector<Channel> channels_;
};

/// "rank 2 has not come to all_reduce(...), sequence 7"; "" if the record says nothing.
std::string describe_failure(const MeetingRecord& record, int rank);

}  // namespace fastcomm
