// Tensors in memory that the devices of all ranks of a group have mapped
// (transport/ipc/peer_pool.h), which its operations use in place.
//
// Streams. As in torch's allocators, a tensor belongs to the stream that is current when it is
// made. A user on another stream makes the first one wait for it, or calls record_stream: then it
// waits before the next tensor is made in that memory (late_uses.h), which no other stream gets
// (transport/ipc/pool_blocks.h). So the memory of a tensor depends on no clock, and ranks that make
// the same tensors have the same layout.
//
// Captures. A stream that is captured makes no tensor there (CudaGroup::empty), since a replay
// would use its memory when that belongs to another tensor.
//
// Only in builds with FC_DEVICES.
#pragma once

#include "tensors/accelerator.h"
#if defined(FC_DEVICES)
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "c10d/engines/cuda/late_uses.h"
#include "core/clock.h"
#include "tensors/stream_ends.h"
#include "transport/ipc/device_ways.h"
#include "transport/ipc/peer_pool.h"
#include "transport/ipc/pool_blocks.h"

namespace fastcomm {

/// Messages between ranks that add memory, although each may come alone.
class PoolOutOfBand : public OutOfBand {
 public:
  /// True if all ranks come here, with none waiting longer than its `patience`; the same on all
  /// ranks. A rank that has issued another number of operations on devices is somewhere else. If
  /// all come they exchange from here on, independently of other threads' use of the group.
  virtual bool all_come(uint64_t issued, Milliseconds patience) = 0;
};

/// Thread-safe, except for peers(), grow() and retire(): one thread at a time. Lives as long as its
/// tensors.
class GroupPool : public std::enable_shared_from_this<GroupPool> {
 public:
  /// `most_bytes` per rank. Raises Error(kSystem) if there is no memory.
  GroupPool(DeviceWay way, int device, int rank, int size, uint64_t most_bytes);
  GroupPool(const GroupPool&) = delete;
  GroupPool& operator=(const GroupPool&) = delete;

  const PeerPool& peers() const { return peers_; }
  /// 0: none, or more than can be addressed.
  static uint64_t bytes_of(at::IntArrayRef sizes, at::ScalarType dtype);
  /// A tensor for the current stream, its content undefined; undefined itself if there is no room.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype);
  /// True if there are any, including some that have been let go of elsewhere and not here.
  bool has_tensors() const { return out_->load() != 0; }
  /// True if another segment of `bytes` would be within the limit.
  bool may_grow(uint64_t bytes) const { return total_ + segment_bytes(bytes) <= most_bytes_; }
  /// Collective, as PeerPool::grow: a segment of `bytes`, equal on all ranks. `prove(begin)` raises
  /// if the ranks' devices see wrong bytes there, and then raises on all: nothing is ever put in
  /// that segment.
  void grow(OutOfBand& out_of_band, uint64_t bytes, const std::function<void(char*)>& prove);
  /// No tensors are made there any more. The memory is freed when the existing ones are gone and
  /// others have let go of it, by `others_are_gone()`, and the streams that tensors were made for
  /// have done what they were given before.
  void retire(const std::function<bool()>& others_are_gone);

 private:
  class Piece;
  static uint64_t segment_bytes(uint64_t bytes);
  void give(LateUses::Piece piece);
  void give_settled();
  c10::Stream stream_of(int64_t id) const {
    return c10::Stream(c10::Stream::UNSAFE, accelerator_device(device_), id);
  }

  const DeviceWay way_;
  const int device_;
  const uint64_t most_bytes_;
  uint64_t total_ = 0;  // with peers_
  PeerPool peers_;
  const std::shared_ptr<std::atomic<int>> out_;  // existing pieces
  const std::shared_ptr<LateUses> late_;         // of pieces that are gone

  const std::shared_ptr<StreamEnds> ends_;  // of the streams of tensors, once retired

  std::mutex mutex_;           // guards the members below
  std::set<int64_t> streams_;  // for which tensors were made
  PoolBlocks blocks_;
  std::vector<char*> begins_;
  bool retired_ = false;
};

/// True if a piece of a device's memory lies all within one such tensor. Thread-safe.
bool is_in_a_pool(const void* memory, uint64_t bytes);
/// Notes that a stream uses the memory of the tensor in which an address lies: that memory is not
/// used again before the stream has done all that it was given until the tensor is gone. False if
/// the address lies in no such tensor. Thread-safe.
bool record_in_a_pool(const void* memory, const c10::Stream& stream);

}  // namespace fastcomm
#endif
