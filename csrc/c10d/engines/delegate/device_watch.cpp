#include "c10d/engines/delegate/device_watch.h"

#include <algorithm>

#include "c10d/life/hooks.h"
#include "core/call_site.h"
#include "core/thread_name.h"

namespace fastcomm {

/// The second thread.
class DeviceWatch::Host final : public StoppedAtEnd {
 public:
  explicit Host(DeviceWatch& watch) : watch_(watch) {}
  ~Host() { end(); }

  /// Raises Error(kSystem) with `problem` if no thread can be started.
  void wake(const std::string& problem) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (needs_thread()) start(problem);
    awake_ = true;
    changed_.notify_one();
  }

 private:
  void run() override {
    name_thread("fc-device-host");
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stop_) {
      awake_ = false;  // before the look: what begins meanwhile wakes this thread again
      lock.unlock();
      const bool busy = watch_.look_at_host();
      lock.lock();
      if (busy) {
        changed_.wait_for(lock, kLook, [this] { return stop_; });
      } else {
        changed_.wait(lock, [this] { return stop_ || awake_; });
      }
    }
  }

  DeviceWatch& watch_;
  bool awake_ = false;  // under mutex_
};

DeviceWatch::DeviceWatch(std::shared_ptr<Delegate> delegate)
    : delegate_(std::move(delegate)), host_(std::make_unique<Host>(*this)) {}

DeviceWatch::~DeviceWatch() { end(); }

DeviceWatch::Entry DeviceWatch::begin(const Delegate::Subject& subject, Milliseconds timeout) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto problem = [&] {
    return delegate_->front(subject) + "no thread can be started that looks for deaths: ";
  };
  if (needs_thread()) start(problem());
  const auto entry = std::make_shared<Watched>(subject, timeout);
  if (watched_.empty()) host_->wake(problem());
  watched_.push_back(entry);
  if (watched_.size() == 1) changed_.notify_one();
  return entry;
}

void DeviceWatch::follow(const Entry& entry, const c10::intrusive_ptr<DelegateWork>& work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  entry->work = work;
}

void DeviceWatch::drop(const Entry& entry) {
  const std::lock_guard<std::mutex> lock(mutex_);
  watched_.erase(std::remove(watched_.begin(), watched_.end(), entry), watched_.end());
}

DeviceWatch::Seen DeviceWatch::seen() {
  Seen seen;
  for (const Entry& each : watched_) seen.emplace_back(each, each->work);
  return seen;
}

void DeviceWatch::drain() {
  for (bool pending = true; pending;) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (stop_) return;  // deaths are not watched any more
    const Seen all = seen();
    lock.unlock();
    if (g_interrupt_check) g_interrupt_check();
    pending = false;
    for (const auto& [entry, work] : all) {
      if (work == nullptr || !work->isCompleted()) pending = true;
    }
    if (delegate_->failure() != nullptr) return;
    if (pending) std::this_thread::sleep_for(Milliseconds(1));
  }
}

void DeviceWatch::run() {
  name_thread("fc-devicewatch");
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !watched_.empty(); });
    if (stop_) return;
    Seen seen = this->seen();
    lock.unlock();
    Seen pending;
    for (const auto& each : seen) {
      const bool done = each.second != nullptr && each.second->isCompleted();
      done ? drop(each.first) : pending.push_back(each);
    }
    ++asked_;
    if (!pending.empty()) look(pending, kLeaverGrace);
    seen.clear();  // without the lock: destructors may take others
    pending.clear();
    lock.lock();
    if (watched_.empty()) {
      const std::lock_guard<std::mutex> looking(looking_);
      stalled_since_.reset();
    }
    changed_.wait_for(lock, kLook, [this] { return stop_; });
  }
}

bool DeviceWatch::look_at_host() {
  if (FC_LEFT_OUT(Control::kNoHostLook)) return false;
  Seen all;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (watched_.empty()) {
      standstill_.reset();
      return false;
    }
    if (standstill_.lasts(asked_, Clock::now()) < kStuck) return true;
    all = seen();
  }
  look(all, kStuckGrace);
  return true;
}

void DeviceWatch::look(const Seen& pending, Milliseconds grace) {
  const std::exception_ptr failure = failure_of(pending, grace);
  if (failure == nullptr) return;
  for (const auto& [entry, work] : pending) {
    if (work != nullptr) work->fail(failure);
  }
}

std::exception_ptr DeviceWatch::failure_of(const Seen& pending, Milliseconds grace) {
  if (const auto failure = delegate_->failure()) return failure;
  const char* first = pending.front().first->subject.operation;
  {
    const std::lock_guard<std::mutex> lock(looking_);
    delegate_->beside()->stalled(first, stalled_since_, awaited(pending, grace));
  }
  if (const auto failure = delegate_->failure()) return failure;  // the first one, if any
  const auto now = Clock::now();
  for (const auto& [entry, work] : pending) {
    if (entry->timeout.count() <= 0 || now - entry->since < entry->timeout) continue;
    return delegate_->give_up(entry->subject, ErrorCode::kTimeout,
                              concat(delegate_->kind().name, ": did not end within ",
                                     entry->timeout.count(), " ms", at_site(entry->subject.site),
                                     ". Look what the other ranks are doing, or raise timeout="));
  }
  const Entry& oldest = pending.front().first;  // the others are behind it
  delegate_->look_at_wait(oldest->warning, oldest->subject);
  return nullptr;
}

uint64_t DeviceWatch::awaited(const Seen& pending, Milliseconds grace) {
  uint64_t peers = 0;
  for (const auto& [entry, work] : pending) {
    if (Clock::now() - entry->since < grace) continue;
    const int peer = entry->subject.peer;
    peers |= peer < 0 ? ~uint64_t{0} : uint64_t{1} << peer;
  }
  return peers;
}

}  // namespace fastcomm
