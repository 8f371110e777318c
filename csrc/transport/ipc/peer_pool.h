// Memory of each rank that all ranks' devices have mapped, for tensors that operations use in place: segments,
// which all ranks add together. What lies where in this rank's part is up to its owner.
//
// Memory ordering: none of its own, as transport/ipc/windows.h. The table of segments on the device is written
// while no kernel reads it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "transport/ipc/windows.h"

namespace fastcomm {

/// One thread at a time.
class PeerPool {
 public:
  static constexpr int kMostSegments = 1024;
  struct Place {
    int segment;
    uint64_t offset;
  };

  /// Raises Error(kSystem): no memory.
  PeerPool(int device, int rank, int size);
  PeerPool(const PeerPool&) = delete;
  PeerPool& operator=(const PeerPool&) = delete;
  /// As ~DeviceWindows.
  ~PeerPool();

  /// Collective: another segment, of `bytes` on every rank, of `memory` on the device. No kernel of any rank waits for another
  /// rank meanwhile: opening a handle may wait for the device. Raises Error(kSystem), on all ranks alike: as DeviceWindows,
  /// or there are kMostSegments; nothing has changed then.
  void grow(HostExchange& hosts, std::unique_ptr<WindowMemory> memory, uint64_t bytes);

  int segments() const { return static_cast<int>(segments_.size()); }
  /// This rank's own.
  char* begin(int segment) const { return segments_[segment]->window(rank_); }
  /// In memory of the device, [segment * size + rank]: where the device finds the segments.
  char* const* table() const { return table_; }
  /// Where a piece of this rank's memory lies; none unless it lies all in one segment.
  std::optional<Place> find(const void* memory, uint64_t bytes) const;

  /// DeviceWindows::leave of all segments, and ::retire.
  void leave(HostExchange& hosts);
  void retire(const std::function<bool()>& others_are_gone);

 private:
  const int device_;
  const int rank_;
  const int size_;
  char** table_ = nullptr;
  std::vector<std::unique_ptr<DeviceWindows>> segments_;
};

}  // namespace fastcomm
