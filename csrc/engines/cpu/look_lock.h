// A lock for state that several threads look at in turn, sleeping while there is nothing to see.
//
// A thread that posts takes it; one that only looks tries to, since the holder is looking too. But
// the holder may have looked just before something came: then a thread that tried in vain would
// sleep through it. So it leaves a mark, and the holder rings its own doorbell when it lets go.
#pragma once

#include <atomic>
#include <mutex>

#include "transport/doorbell.h"

namespace fastcomm {

class LookLock {
 public:
  /// The threads of this rank sleep on `doorbell`.
  explicit LookLock(Doorbell& doorbell) : doorbell_(doorbell) {}

  class Holder {
   public:
    explicit Holder(LookLock& lock) : lock_(lock), held_(true) { lock_.mutex_.lock(); }

    Holder(LookLock& lock, std::try_to_lock_t) : lock_(lock), held_(lock.mutex_.try_lock()) {
      if (held_) return;
      // This side stores the mark and then looks at the lock; ~Holder lets go of the lock and then
      // looks at the mark. With a fence between the two on both sides one sees the other: either
      // the lock is free here, or the mark is seen there. A thread about to sleep has counted
      // itself in before.
      lock_.missed_.store(true, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      held_ = lock_.mutex_.try_lock();
    }

    ~Holder() {
      if (!held_) return;
      lock_.mutex_.unlock();
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (!lock_.missed_.load(std::memory_order_relaxed)) return;
      lock_.missed_.store(false, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_seq_cst);  // doorbell.h
      ring_if_asleep(lock_.doorbell_);
    }

    Holder(const Holder&) = delete;
    Holder& operator=(const Holder&) = delete;
    bool held() const { return held_; }

   private:
    LookLock& lock_;
    bool held_;
  };

 private:
  Doorbell& doorbell_;
  std::mutex mutex_;
  std::atomic<bool> missed_{false};
};

}  // namespace fastcomm
