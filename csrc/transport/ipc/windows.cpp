#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "transport/ipc/windows.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/beside_captures.h"
#include "core/control.h"

namespace fastcomm {
namespace {

/// Windows that their ranks have left, and others may still have mapped. Never destroyed: the
/// windows end with the process.
class Retired {
 public:
  static Retired& get() {
    static auto& all = *new Retired;
    return all;
  }
  void add(std::unique_ptr<WindowMemory> memory, std::function<bool()> others_are_gone) {
    const std::lock_guard<std::mutex> lock(mutex_);
    windows_.push_back({std::move(memory), std::move(others_are_gone)});
  }
  /// Frees the windows that are due.
  void sweep() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto is_free = [](const Window& window) {
      if (!window.others_are_gone()) return false;
      const std::string why_not = failure_text([&] {
        const BesideCaptures others(window.memory->device());
        window.memory->free();
      });
      return why_not.empty();  // otherwise it is tried again
    };
    windows_.erase(std::remove_if(windows_.begin(), windows_.end(), is_free), windows_.end());
  }

 private:
  struct Window {
    std::unique_ptr<WindowMemory> memory;
    std::function<bool()> others_are_gone;
  };
  std::mutex mutex_;
  std::vector<Window> windows_;
};

}  // namespace

void sweep_retired_windows() { Retired::get().sweep(); }

std::string problems_of_all(OutOfBand& out_of_band, const std::string& own) {
  const std::vector<std::string> all = out_of_band.all_gather(own);
  std::string text;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty())
      text += concat(text.empty() ? "" : "; ", "rank ", rank, ": ", all[rank]);
  }
  return text;
}

DeviceWindows::DeviceWindows(OutOfBand& out_of_band, int rank, std::unique_ptr<WindowMemory> memory,
                             uint64_t bytes)
    : rank_(rank), device_(memory->device()), bytes_(bytes), memory_(std::move(memory)) {
  Retired::get().sweep();
  std::string handle;
  char* window = nullptr;
  const std::string own = failure_text([&] {
    window = memory_->make(bytes_);
    handle = memory_->handle();
  });
  // A problem is sent like a handle: all ranks take part in both exchanges, so none waits in vain.
  const std::vector<std::string> handles = out_of_band.all_gather(handle);
  windows_.assign(handles.size(), nullptr);
  windows_[rank] = window;
  try {
    const std::string text = exchange(out_of_band, handles, own);
    if (text.empty()) return;
    const std::string ignored = failure_text([&] { leave(out_of_band); });
    throw Error(ErrorCode::kSystem, text);
  } catch (...) {
    unmap();
    throw;
  }
}

DeviceWindows::~DeviceWindows() {
  unmap();
  static_cast<void>(memory_.release());  // the window, if it has not been left
}

std::string DeviceWindows::exchange(OutOfBand& out_of_band, const std::vector<std::string>& handles,
                                    const std::string& own) {
  if (memory_->gives()) {
    const auto give = [&] { memory_->give(rank_, handles); };
    const std::string text = problems_of_all(out_of_band, own.empty() ? failure_text(give) : own);
    if (!text.empty()) return text;
  }
  const auto map = [&] {
    for (int peer = 0; peer < size(); ++peer) {
      // An empty handle: its rank tells why in the next exchange.
      if (peer == rank_ || handles[peer].empty()) continue;
      windows_[peer] = memory_->map(peer, handles[peer]);
    }
  };
  return problems_of_all(out_of_band, own.empty() ? failure_text(map) : own);
}

void DeviceWindows::unmap() {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_ || windows_[peer] == nullptr) continue;
    const std::string ignored = failure_text([&] { memory_->unmap(peer); });
    windows_[peer] = nullptr;
  }
}

void DeviceWindows::take() {
  FC_CHECK(!taken_, "the windows' flags have been counted before: make new windows");
  taken_ = true;
}

void DeviceWindows::leave(OutOfBand& out_of_band) {
  unmap();
  // A rank that has come here has unmapped this rank's window.
  if (!FC_LEFT_OUT(Control::kLeaveAlone)) out_of_band.all_gather("");
  windows_[rank_] = nullptr;
  if (const std::unique_ptr<WindowMemory> own = std::move(memory_)) own->free();
}

void DeviceWindows::retire(std::function<bool()> others_are_gone) {
  unmap();
  windows_[rank_] = nullptr;
  if (memory_ != nullptr) Retired::get().add(std::move(memory_), std::move(others_are_gone));
  Retired::get().sweep();
}

}  // namespace fastcomm
#endif
