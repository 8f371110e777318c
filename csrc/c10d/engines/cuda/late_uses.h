// Uses of a pool's memory by streams to which it does not belong, as torch's record_stream tells
// them.
//
// torch's allocators keep such memory until those streams have passed the work that they had been
// given when the tensor was freed. A pool may ask no clock (transport/ipc/pool_blocks.h): the
// memory is free at once, and the stream to which it belongs waits for the others before it uses it
// again. The host waits for nothing.
//
// Captures. No mark can be left behind the earlier work of a stream that is captured: memory that
// such a stream uses is given back when the capture is over.
//
// Only in builds with FC_DEVICES.
#pragma once

#include "tensors/accelerator.h"
#if defined(FC_DEVICES)
#include <c10/core/Event.h>

#include <mutex>
#include <utility>
#include <vector>

#include "transport/ipc/pool_blocks.h"

namespace fastcomm {

/// Streams that use the memory of a tensor, beside its own. Thread-safe.
class StreamUsers {
 public:
  explicit StreamUsers(const c10::Stream& own) : owner(own) {}
  StreamUsers(const StreamUsers&) = delete;
  StreamUsers& operator=(const StreamUsers&) = delete;

  void add(const c10::Stream& stream);
  /// For a tensor that is gone: nobody adds any more.
  std::vector<c10::Stream> take() { return std::move(streams_); }

  const c10::Stream owner;

 private:
  std::mutex mutex_;  // guards the next
  std::vector<c10::Stream> streams_;
};

/// Thread-safe.
class LateUses {
 public:
  /// Memory whose tensor is gone.
  struct Piece {
    PoolBlocks::Block block;
    int64_t owner;  // the stream to which it belongs
    std::vector<c10::Stream> users;
  };

  void add(Piece piece);
  /// Takes out the pieces that may be given back, in the order in which they came: wait() lets
  /// their next user wait for what is known of until then.
  std::vector<Piece> settled();
  /// Lets a stream wait for all uses of a block.
  void wait(const PoolBlocks::Block& block, const c10::Stream& stream);
  /// True if all uses are over. For a pool that has retired: no piece is given back any more.
  bool over();

 private:
  struct Use {
    PoolBlocks::Block block;
    c10::Event end;
  };
  std::vector<Piece> settled_locked();

  std::mutex mutex_;  // guards the members below
  std::vector<Piece> unsettled_;
  std::vector<Use> uses_;
};

}  // namespace fastcomm
#endif
