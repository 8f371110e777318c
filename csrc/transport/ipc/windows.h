// Memory of each rank which the devices of all ranks reach: processes that share a machine map each
// other's. On the ranks' devices, or the host's (transport/ipc/window_memory.h). Made once, when a group is
// formed; no handle is opened later.
//
//   make    a rank allocates its window, which is zero before any other rank knows of it: a flag in it counts
//           from zero, and no peer can have stored one before
//   tell    the hosts tell each other their handles, and give what a handle needs besides
//   map     each maps the others' windows
//   agree   the hosts tell each other how that went; where one has failed, all raise what it says
//   leave   no rank's kernels use a window any more: each unmaps the others', the hosts meet, and only
//           then is a window freed
//   retire  leave, where a host waits for no one: its window is kept until it is known that all
//           others have let go of it
//
// Memory ordering: of the window's bytes, none. What hosts tell each other is ordered by HostExchange:
// a reader of what a host has written is after all that the host did before.
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

/// What the hosts of a group tell each other. All hosts make the same calls in the same order.
class HostExchange {
 public:
  virtual ~HostExchange() = default;
  /// What each rank has given, in rank order. Raises Error: a rank does not come (kTimeout, kPeerLost).
  virtual std::vector<std::string> all_gather(const std::string& own) = 0;
};

/// "" or the text of an exception.
template <class Body>
std::string failure_text(const Body& body) {
  try {
    body();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// What went wrong on any rank, told on every rank: "rank 1: ...; rank 2: ...", "" if nothing did.
std::string problems_of_all(HostExchange& hosts, const std::string& own);

/// Frees the retired windows (DeviceWindows::retire) that are due. Any thread.
void sweep_retired_windows();

/// One thread at a time.
class DeviceWindows {
 public:
  /// Collective. `memory` is of the same class on all ranks, and `bytes` are equal. Raises Error (kSystem),
  /// on all ranks alike: no memory, handles that are not supported, or memory that a device does not reach.
  DeviceWindows(HostExchange& hosts, int rank, std::unique_ptr<WindowMemory> memory,
                uint64_t bytes);
  DeviceWindows(const DeviceWindows&) = delete;
  DeviceWindows& operator=(const DeviceWindows&) = delete;
  /// Unmaps. A window that its rank has not left is not freed: others may still have it mapped, and it
  /// stays until the process ends.
  ~DeviceWindows();

  /// Collective, and the last thing: this rank's host has waited for all kernels that use a window.
  /// Raises Error as HostExchange does; the window is kept then.
  void leave(HostExchange& hosts);

  /// In place of leave(): this rank's host has waited for all its kernels that use a window. A rank that
  /// `others_are_gone()` counts as gone has retired, too, or is dead. That is asked now, by later calls of this
  /// function and of sweep_retired_windows(), and when windows are made, until it says so; then the window is freed.
  void retire(std::function<bool()> others_are_gone);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(windows_.size()); }
  /// The device that reaches them.
  int device() const { return device_; }
  uint64_t bytes() const { return bytes_; }
  /// A user that counts flags there starts at zero: once for each window. Raises Error(kInvalidArgument).
  void take();
  /// A rank's window, as this rank's device reaches it; aligned to 256 bytes.
  char* window(int rank) const { return windows_[rank]; }

 private:
  /// `own`: what went wrong here so far. Returns what went wrong on any rank, the same on all ranks.
  std::string exchange(HostExchange& hosts, const std::vector<std::string>& handles,
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
