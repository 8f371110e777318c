// Memory of each rank that all ranks' devices have mapped, for tensors that operations use in
// place. It consists of segments, which all ranks add together. The owner of a rank's part arranges
// it.
//
// Memory ordering: none of its own, like transport/ipc/windows.h. The table of segments on the
// device is written while no kernel reads it.
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
  struct Address {
    int segment;
    uint64_t offset;
  };

  /// Raises Error(kSystem) if there is no memory.
  PeerPool(int device, int rank, int size);
  PeerPool(const PeerPool&) = delete;
  PeerPool& operator=(const PeerPool&) = delete;
  /// Like ~DeviceWindows.
  ~PeerPool();

  /// Adds a segment of `bytes` on every rank, of `memory` on the device. Collective. No kernel of
  /// any rank may wait for another rank meanwhile: opening a handle may wait for the device. Raises
  /// Error(kSystem) on all ranks, with nothing changed, for the reasons of DeviceWindows, or if
  /// there are kMostSegments already.
  void grow(OutOfBand& out_of_band, std::unique_ptr<WindowMemory> memory, uint64_t bytes);

  int segments() const { return static_cast<int>(segments_.size()); }
  /// This rank's part of a segment.
  char* begin(int segment) const { return segments_[segment]->window(rank_); }
  /// Addresses of the segments for the device, in its memory: [segment * size + rank].
  char* const* table() const { return table_; }
  /// Place of a piece of this rank's memory; none unless it lies in one segment as a whole.
  std::optional<Address> find(const void* memory, uint64_t bytes) const;

  /// DeviceWindows::leave of all segments, and ::retire.
  void leave(OutOfBand& out_of_band);
  void retire(const std::function<bool()>& others_are_gone);

 private:
  const int device_;
  const int rank_;
  const int size_;
  char** table_ = nullptr;
  std::vector<std::unique_ptr<DeviceWindows>> segments_;
};

}  // namespace fastcomm
