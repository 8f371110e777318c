#include "c10d/engines/delegate/device_watch.h"

#include <algorithm>

#include "c10d/life/hooks.h"
#include "core/call_site.h"

namespace fastcomm {

DeviceWatch::DeviceWatch(std::shared_ptr<Delegate> delegate)
    : delegate_(std::move(delegate)),
      device_("fc-devicewatch", [this] { return look_at_device(); }),
      host_("fc-device-host", [this] { return look_at_host(); }) {}

DeviceWatch::Entry DeviceWatch::begin(const Delegate::Subject& subject, Milliseconds timeout) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (watched_.empty()) {
    const std::string front = delegate_->front(subject);
    device_.wake(front);
    host_.wake(front);
  }
  return watched_.emplace_back(std::make_shared<Watched>(subject, timeout));
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
    if (device_.has_stopped()) return;  // deaths are not watched any more
    std::unique_lock<std::mutex> lock(mutex_);
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

bool DeviceWatch::look_at_device() {
  Seen all, pending;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    all = seen();
  }
  for (const auto& each : all) {
    const bool done = each.second != nullptr && each.second->isCompleted();
    done ? drop(each.first) : pending.push_back(each);
  }
  ++asked_;
  if (!pending.empty()) look(pending, kLeaverGrace);
  // Before the two end, without the lock: destructors may take others.
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!watched_.empty()) return true;
  const std::lock_guard<std::mutex> looking(looking_);
  stalled_since_.reset();
  return false;
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
  if (const auto& memory = delegate_->beside().memory) {
    const std::lock_guard<std::mutex> lock(looking_);
    memory->stalled(first, stalled_since_, awaited(pending, grace));
  }
  if (const auto failure = delegate_->failure()) return failure;  // the first one, if any
  const auto now = Clock::now();
  for (const auto& [entry, work] : pending) {
    if (entry->timeout.count() <= 0 || now - entry->since < entry->timeout) continue;
    return delegate_->give_up(entry->subject, ErrorCode::kTimeout,
                              concat(delegate_->kind().name, ": ", timed_out(entry->timeout),
                                     at_site(entry->subject.site),
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
