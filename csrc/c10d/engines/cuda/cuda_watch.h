// The threads that look after a group's operations on its device. One asks the device which
// operations have passed, and the host for deaths and failures; the other asks the host alone, so
// that a rank's death is seen while a thread of this process waits in CUDA's driver.
#pragma once

#include "c10d/engines/cuda/cuda_group.h"
#if defined(FC_DEVICES)
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

#include "c10d/life/stopped_at_end.h"

namespace fastcomm {

/// One of these threads. Sleeps while nothing is under way. Thread-safe.
class CudaWatch final : public StoppedAtEnd {
 public:
  enum class At { kDevice, kHost };

  CudaWatch(std::shared_ptr<CudaGroup> group, At at) : group_(std::move(group)), at_(at) {}
  ~CudaWatch() { end(); }

  /// Called before a submission, to have a thread, and afterwards, to have it seen. Raises
  /// Error(kSystem) if no thread can be started.
  void wake() {
    // The thread clears the word and then looks at the flights, under a lock. If it has not seen a
    // flight from before this call, it had that lock first: so this exchange finds the word
    // cleared, and wakes it. Otherwise it has seen that flight, and looks again.
    if (awake_.exchange(true, std::memory_order_acq_rel)) return;
    rouse();
  }

 private:
  static constexpr std::chrono::milliseconds kLook{20};

  void rouse();
  void run() override;

  const std::shared_ptr<CudaGroup> group_;
  const At at_;
  std::atomic<bool> awake_{false};
};

}  // namespace fastcomm
#endif
