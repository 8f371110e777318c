#include "c10d/engines/cuda/cuda_watch.h"
#if defined(FC_DEVICES)
#include <system_error>
#include <utility>

#include "c10d/life/exception.h"
#include "core/device_guard.h"
#include "core/thread_name.h"

namespace fastcomm {
CudaWatch::CudaWatch(std::shared_ptr<CudaGroup> group) : group_(std::move(group)) { enlist(); }

CudaWatch::~CudaWatch() {
  delist();
  stop();
}

void CudaWatch::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void CudaWatch::rouse() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stop_) return;
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      awake_ = false;
      throw Error(ErrorCode::kSystem,
                  concat("no thread can be started that looks after devices: ", error.what(),
                         ". Raise ulimit -u or the container's limit on processes"));
    }
  }
  changed_.notify_one();
}

void CudaWatch::run() {
  name_thread("fc-device");
  // What this thread lets go of belongs to that device; others get no context of this process.
  const DeviceGuard guard(group_->device());
  std::unique_lock<std::mutex> lock(mutex_);
  for (bool busy = true; !stop_;) {
    if (busy) {
      changed_.wait_for(lock, kLook, [this] { return stop_; });
    } else {
      changed_.wait(lock, [this] { return stop_ || awake_.load(std::memory_order_acquire); });
    }
    if (stop_) return;
    lock.unlock();
    // Said before the look: what is submitted meanwhile wakes this thread, or is seen here.
    awake_.store(false, std::memory_order_release);
    if (const auto error = caught([&] { busy = group_->look(); })) {
      group_->give_up("none", ErrorCode::kSystem, what_of(error));
      busy = true;
    }
    lock.lock();
  }
}

}  // namespace fastcomm
#endif
