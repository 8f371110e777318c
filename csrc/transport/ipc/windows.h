// Memory of each rank which the devices of all ranks reach: processes that share a machine map each
// other's. It lies on the ranks' devices, or on the host (transport/ipc/window_memory.h). It is
// made once, when a group is formed; no handle is opened later.
//
//   make    a rank allocates its window, zeroed before any other rank knows of it: a flag in it
//           counts from zero, and no peer can have stored one before
//   tell    the hosts exchange their handles, and anything else that a handle needs
//   map     each maps the others' windows
//   agree   the hosts exchange the outcome; if one has failed, all raise its error
//   leave   no rank's kernels use a window any more: each unmaps the others', the hosts meet, and
//           only then is a window freed
//   retire  a leave without waiting for other hosts: the window is kept until all others are known
//           to have let go of it
//
// Memory ordering: none for the window's bytes. OutOfBand orders the hosts' messages: a reader
// of a host's message comes after all that the host did before it.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda_host.h"
#include "transport/ipc/window_memory.h"

namespace fastcomm {

/// Messages between a group's ranks that no operation carries. All ranks make the same calls in the
/// same order.
class OutOfBand {
 public:
  virtual ~OutOfBand() = default;
  /// The ranks' messages, in rank order. Raises Error if a rank does not come (kTimeout,
  /// kPeerLost).
  virtual std::vector<std::string> all_gather(const std::string& own) = 0;
};

/// The text of the exception that `body` raises, else "".
template <class Body>
std::string failure_text(const Body& body) {
  try {
    body();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Problems of all ranks, told on every rank: "rank 1: ...; rank 2: ...", "" if there are none.
std::string problems_of_all(OutOfBand& out_of_band, const std::string& own);

/// Frees the retired windows (DeviceWindows::retire) that are due. Any thread.
void sweep_retired_windows();

/// One thread at a time.
class DeviceWindows {
 public:
  /// Collective. `memory` is of the same class on all ranks, and `bytes` are equal. Raises
  /// Error(kSystem), on all ranks alike: no memory, handles that are not supported, or memory that
  /// a device does not reach.
  DeviceWindows(OutOfBand& out_of_band, int rank, std::unique_ptr<WindowMemory> memory,
                uint64_t bytes);
  DeviceWindows(const DeviceWindows&) = delete;
  DeviceWindows& operator=(const DeviceWindows&) = delete;
  /// Unmaps. A window that its rank has not left is not freed: others may still have it mapped, so
  /// it stays until the process ends.
  ~DeviceWindows();

  /// The last call; collective: this rank's host has waited for all kernels that use a window.
  /// Raises errors of OutOfBand, and then keeps the window.
  void leave(OutOfBand& out_of_band);

  /// Replaces leave(): this rank's host has waited for all its kernels that use a window. A rank
  /// that is gone by `others_are_gone()` must have retired, too, or be dead. It is asked now, by
  /// later calls of this function and of sweep_retired_windows(), and when windows are made, until
  /// it returns true; then the window is freed.
  void retire(std::function<bool()> others_are_gone);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(windows_.size()); }
  /// The device that reaches the windows.
  int device() const { return device_; }
  uint64_t bytes() const { return bytes_; }
  /// Reserves the windows for one user, once: its flags must start at zero. Raises
  /// Error(kInvalidArgument).
  void take();
  /// A rank's window, as this rank's device reaches it; aligned to 256 bytes.
  char* window(int rank) const { return windows_[rank]; }

 private:
  /// Exchanges `own`, this rank's problem so far. Returns the problems of all ranks, the same on
  /// all ranks.
  std::string exchange(OutOfBand& out_of_band, const std::vector<std::string>& handles,
                       const std::string& own);
  void unmap();

  const int rank_;
  const int device_;
  const uint64_t bytes_;
  bool taken_ = false;
  std::unique_ptr<WindowMemory> memory_;
  std::vector<char*> windows_;  // nullptr: not mapped
};

}  // namespace fastcomm
