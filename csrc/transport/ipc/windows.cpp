#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "transport/ipc/windows.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <utility>

#include "core/control.h"

namespace fastcomm {
namespace {

// A handle is of what the driver has made, and it may cut smaller pieces out of that.
constexpr uint64_t kHandleBytes = uint64_t{2} << 20;

/// "" or what an exception says.
template <class Body>
std::string problem_of(const Body& body) {
  try {
    body();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Windows that their ranks have left, and others may still have mapped. Never destroyed: the process ends
/// with them.
class Retired {
 public:
  static Retired& get() {
    static auto& all = *new Retired;
    return all;
  }
  void add(int device, char* memory, std::function<bool()> others_are_gone) {
    const std::lock_guard<std::mutex> lock(mutex_);
    windows_.push_back({device, memory, std::move(others_are_gone)});
  }
  /// Frees those of which it is time.
  void sweep() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto is_free = [](const Window& window) {
      if (!window.others_are_gone()) return false;
      const std::string ignored = problem_of([&] {
        const BesideCaptures others;
        const DeviceGuard guard(window.device);
        forget_error(cudaFree(window.memory));
      });
      return true;
    };
    windows_.erase(std::remove_if(windows_.begin(), windows_.end(), is_free), windows_.end());
  }

 private:
  struct Window {
    int device;
    char* memory;
    std::function<bool()> others_are_gone;
  };
  std::mutex mutex_;
  std::vector<Window> windows_;
};

}  // namespace

std::string problems_of_all(HostExchange& hosts, const std::string& own) {
  const std::vector<std::string> all = hosts.all_gather(own);
  std::string text;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty())
      text += concat(text.empty() ? "" : "; ", "rank ", rank, ": ", all[rank]);
  }
  return text;
}

DeviceWindows::DeviceWindows(HostExchange& hosts, int rank, int device, uint64_t bytes)
    : rank_(rank), device_(device), bytes_(bytes) {
  Retired::get().sweep();
  std::string handle;
  const std::string own = make(handle);
  // A problem is told like a handle: everybody comes to both exchanges, and nobody waits in vain.
  const std::vector<std::string> handles = hosts.all_gather(handle);
  char* const window = windows_.empty() ? nullptr : windows_[0];
  windows_.assign(handles.size(), nullptr);
  windows_[rank] = window;
  try {
    const std::string text = problems_of_all(hosts, own.empty() ? map(handles) : own);
    if (text.empty()) return;
    const std::string ignored = problem_of([&] { leave(hosts); });
    throw Error(ErrorCode::kSystem, "the ranks cannot map each other's device memory: " + text);
  } catch (...) {
    unmap();
    throw;
  }
}

DeviceWindows::~DeviceWindows() { unmap(); }

std::string DeviceWindows::make(std::string& handle) {
  return problem_of([&] {
    const DeviceGuard guard(device_);
    void* memory = nullptr;
    const uint64_t bytes = (bytes_ + kHandleBytes - 1) / kHandleBytes * kHandleBytes;
    FC_CUDA(cudaMalloc(&memory, bytes), "a window of ", bytes, " bytes");
    windows_.assign(1, static_cast<char*>(memory));
    cudaStream_t stream = nullptr;
    FC_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a window's stream");
    const std::string problem = problem_of([&] {
      FC_CUDA(cudaMemsetAsync(memory, 0, bytes, stream), "a window's flags");
      FC_CUDA(cudaStreamSynchronize(stream), "a window's flags");
    });
    static_cast<void>(cudaStreamDestroy(stream));
    if (!problem.empty()) throw Error(ErrorCode::kSystem, problem);
    cudaIpcMemHandle_t own;
    FC_CUDA(cudaIpcGetMemHandle(&own, memory), "a window for other processes");
    handle.assign(own.reserved, sizeof(own.reserved));
  });
}

std::string DeviceWindows::map(const std::vector<std::string>& handles) {
  return problem_of([&] {
    const DeviceGuard guard(device_);
    for (int peer = 0; peer < size(); ++peer) {
      // An empty handle: the peer says in the next exchange why.
      if (peer == rank_ || handles[peer].empty()) continue;
      cudaIpcMemHandle_t handle;
      FC_CHECK(handles[peer].size() == sizeof(handle.reserved), "rank ", peer,
               " has sent a handle of ", handles[peer].size(), " bytes");
      std::memcpy(handle.reserved, handles[peer].data(), sizeof(handle.reserved));
      void* memory = nullptr;
      FC_CUDA(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess),
              "the window of rank ", peer);
      windows_[peer] = static_cast<char*>(memory);
    }
  });
}

void DeviceWindows::unmap() {
  const std::string ignored = problem_of([&] {
    const DeviceGuard guard(device_);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_ || windows_[peer] == nullptr) continue;
      forget_error(cudaIpcCloseMemHandle(windows_[peer]));
      windows_[peer] = nullptr;
    }
  });
}

void DeviceWindows::take() {
  FC_CHECK(!taken_, "the windows' flags have been counted before: make new windows");
  taken_ = true;
}

void DeviceWindows::leave(HostExchange& hosts) {
  unmap();
  // Whoever has come has unmapped this rank's window.
  if (!FC_LEFT_OUT(Control::kLeaveAlone)) hosts.all_gather("");
  const DeviceGuard guard(device_);
  char* const own = std::exchange(windows_[rank_], nullptr);
  if (own != nullptr) FC_CUDA(cudaFree(own), "a window");
}

void DeviceWindows::retire(std::function<bool()> others_are_gone) {
  unmap();
  char* const own = std::exchange(windows_[rank_], nullptr);
  if (own != nullptr) Retired::get().add(device_, own, std::move(others_are_gone));
  Retired::get().sweep();
}

}  // namespace fastcomm
#endif
