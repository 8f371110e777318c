#include "c10d/engines/cuda/cuda_watch.h"
#if defined(FC_DEVICES)
#include <optional>

#include "c10d/life/exception.h"
#include "core/device_guard.h"
#include "core/thread_name.h"

namespace fastcomm {
void CudaWatch::rouse() {
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    if (needs_thread()) start("no thread can be started that looks after devices: ");
  } catch (const Error&) {
    awake_ = false;
    throw;
  }
  changed_.notify_one();
}

void CudaWatch::run() {
  const bool at_device = at_ == At::kDevice;
  if (at_device) {
    name_thread("fc-device");
  } else {
    name_thread("fc-device-host");
  }
  // Objects that this thread lets go of belong to that device; others get no context of this
  // process.
  std::optional<DeviceGuard> guard;
  if (at_device) guard.emplace(group_->device());
  std::unique_lock<std::mutex> lock(mutex_);
  for (bool busy = true; !stop_;) {
    if (busy) {
      changed_.wait_for(lock, kLook, [this] { return stop_; });
    } else {
      changed_.wait(lock, [this] { return stop_ || awake_.load(std::memory_order_acquire); });
    }
    if (stop_) return;
    lock.unlock();
    // Stored before the look: calls submitted meanwhile wake this thread, or are seen here.
    awake_.store(false, std::memory_order_release);
    if (const auto error =
            caught([&] { busy = at_device ? group_->look() : group_->look_at_host(); })) {
      group_->give_up("none", ErrorCode::kSystem, what_of(error));
      busy = true;
    }
    lock.lock();
  }
}

}  // namespace fastcomm
#endif
