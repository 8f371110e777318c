#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "devices/device_set.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/beside_captures.h"
#include "core/control.h"
#include "core/device_guard.h"

namespace fastcomm {
namespace {

/// The negative control that leaves out the waits for a mark.
constexpr Control dropped_wait(Mark mark) {
  return static_cast<Control>(static_cast<int>(Control::kDropReady) + static_cast<int>(mark));
}

}  // namespace

DeviceSet::DeviceSet(std::vector<int> devices, PeerAccess& access, const DeviceSetOptions& options)
    : devices_(std::move(devices)),
      peers_(access),
      access_(devices_.size() * devices_.size()),
      most_half_bytes_(std::max(options.most_staging_bytes, kLeastStagingBytes) / 8192 * 4096),
      owner_(getpid()) {
  FC_CHECK(size() >= 1 && size() <= kMaxLocalRanks, "a group of devices has 1 to ", kMaxLocalRanks,
           " ranks, not ", size());
  static const Access kAsked{AccessKind::kStaged, "this group stages everything"};
  for (int rank = 0; rank < size(); ++rank) {
    for (int peer = 0; peer < size(); ++peer) {
      const bool stage = options.stage_all && rank != peer;
      const Access& found = stage ? kAsked : access.between(devices_[rank], devices_[peer]);
      access_[rank * size() + peer] = &found;
      unproved_ = unproved_ || found.unproved;
    }
  }
  DeviceGuard guard;
  for (const int device : devices_) {
    guard.set(device);
    for (int mark = 0; mark < kNumMarks; ++mark) {
      cudaEvent_t event = nullptr;
      FC_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event of device ",
              device);
      events_.emplace_back(event);
    }
  }
}

DeviceSet::~DeviceSet() {
  if (getpid() != owner_) {  // CUDA does not work here: the parent's memory is not ours to free
    for (Event& event : events_) static_cast<void>(event.release());
    for (Pinned& memory : pinned_) static_cast<void>(memory.release());
    return;
  }
  if (pinned_.empty()) return;
  try {
    const BesideCaptures others(devices_[0]);
    // Each reader of staged data leaves a mark after reading.
    for (int rank = 0; rank < size(); ++rank) {
      for (const Mark mark : {Mark::kDrained, Mark::kDrainedOdd}) {
        static_cast<void>(cudaEventSynchronize(event(mark, rank)));
      }
    }
    pinned_.clear();
  } catch (const Error&) {
    // The devices are lost; the memory stays allocated.
    for (Pinned& memory : pinned_) static_cast<void>(memory.release());
  }
}

void DeviceSet::check(const Streams& streams) const {
  FC_CHECK(streams.size() == devices_.size(), "a group of ", size(), " ranks was given ",
           streams.size(), " streams");
  if (getpid() != owner_) {
    throw Error(ErrorCode::kForked,
                "CUDA does not work in a child of fork(): start processes with the 'spawn' method");
  }
}

void DeviceSet::look_again(const Streams& streams) {
  if (!unproved_ || !peers_.is_time()) return;
  DeviceGuard guard;
  for (int rank = 0; rank < size(); ++rank) {
    guard.set(devices_[rank]);  // stream 0 is the current device's
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t result = cudaStreamIsCapturing(streams[rank], &status);
    forget_error(result);  // even if stream 0 may not be queried, because another one is captured
    if (result != cudaSuccess || status != cudaStreamCaptureStatusNone) return;
  }
  unproved_ = false;
  for (int rank = 0; rank < size(); ++rank) {
    for (int peer = 0; peer < size(); ++peer) {
      if (!access(rank, peer).unproved) continue;
      const Access& found = peers_.look_again(devices_[rank], devices_[peer]);
      // Release: a thread that loads it, without the mutex, may never have asked `peers_`, and has
      // to see the verdict itself.
      access_[rank * size() + peer].store(&found, std::memory_order_release);
      unproved_ = unproved_ || found.unproved;
    }
  }
}

void DeviceSet::mark(Mark mark, int rank, const Streams& streams, DeviceGuard& guard) {
  guard.set(devices_[rank]);  // stream 0 is the current device's
  FC_CUDA(cudaEventRecord(event(mark, rank), streams[rank]), "rank ", rank, " on device ",
          devices_[rank], ": is its stream of another device?");
}

void DeviceSet::await(Mark mark, int rank, int peer, const Streams& streams, DeviceGuard& guard) {
  if (!same_stream(rank, peer, streams)) await_earlier(mark, rank, peer, streams, guard);
}

void DeviceSet::await_earlier(Mark mark, int rank, int peer, const Streams& streams,
                              DeviceGuard& guard) {
  if (FC_LEFT_OUT(dropped_wait(mark))) return;
  guard.set(devices_[rank]);
  FC_CUDA(cudaStreamWaitEvent(streams[rank], event(mark, peer), 0), "rank ", rank, " on device ",
          devices_[rank], " waits for rank ", peer);
}

void DeviceSet::meet(Mark mark, const Streams& streams, DeviceGuard& guard) {
  if (size() == 1) return;
  for (int rank = 1; rank < size(); ++rank) {
    if (same_stream(0, rank, streams)) continue;
    this->mark(mark, rank, streams, guard);
    await(mark, 0, rank, streams, guard);
  }
  this->mark(mark, 0, streams, guard);
  for (int rank = 1; rank < size(); ++rank) await(mark, rank, 0, streams, guard);
}

Staging& DeviceSet::staging(uint64_t wanted) {
  if (staging_.half_bytes < std::min(wanted, most_half_bytes_)) {
    uint64_t half = kLeastStagingBytes / 2;
    while (half < wanted) half *= 2;
    half = std::min(half, most_half_bytes_);
    const BesideCaptures others(devices_[0]);  // pinned memory belongs to a context
    void* memory = nullptr;
    // Portable: pinned for every device. Mapped: kernels use it by its own address.
    FC_CUDA(cudaHostAlloc(&memory, 2 * half, cudaHostAllocPortable | cudaHostAllocMapped), 2 * half,
            " bytes of pinned memory for data that cannot go directly between devices; "
            "'fastcomm env' tells between which, and why");
    pinned_.emplace_back(static_cast<char*>(memory));
    staging_.memory = pinned_.back().get();
    staging_.half_bytes = half;
  }
  return staging_;
}

}  // namespace fastcomm
#endif
