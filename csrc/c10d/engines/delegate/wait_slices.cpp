#include "c10d/engines/delegate/wait_slices.h"

#include <algorithm>
#include <system_error>
#include <thread>

#include "core/thread_name.h"

namespace fastcomm {

WaitSlices& WaitSlices::instance() {
  static auto* shared = new WaitSlices;  // its thread may outlive the static objects
  return *shared;
}

bool WaitSlices::wait(::c10d::Work& work) {
  struct Entry {
    explicit Entry(::c10d::Work& waited) : work(waited) { instance().add(work); }
    ~Entry() { instance().remove(work); }
    ::c10d::Work& work;
  };
  const Entry entry(work);
  return work.wait();
}

void WaitSlices::add(::c10d::Work& work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.push_back({&work, Clock::now()});
  if (asleep_) added_.notify_one();
  if (running_) return;
  try {
    std::thread([this] { run(); }).detach();
    running_ = true;
  } catch (const std::system_error&) {  // no thread available
  }
}

void WaitSlices::remove(::c10d::Work& work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.erase(std::find_if(waiting_.begin(), waiting_.end(),
                              [&](const Waiting& each) { return each.work == &work; }));
}

void WaitSlices::run() {
  name_thread("fc-gloo-slices");
  constexpr int kIdleSlices = 100;  // then it sleeps: it is not to be woken for every wait
  int idle = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    idle = waiting_.empty() ? idle + 1 : 0;
    if (idle > kIdleSlices) {
      asleep_ = true;
      added_.wait(lock, [&] { return !waiting_.empty(); });
      asleep_ = false;
      idle = 0;  // more waits may follow
    }
    lock.unlock();
    std::this_thread::sleep_for(kSlice);
    lock.lock();
    const auto now = Clock::now();
    for (Waiting& each : waiting_) {
      if (now - each.since < kSlice) continue;
      each.work->abort();  // under the lock: it is there until remove()
      each.since = now;
    }
  }
}

}  // namespace fastcomm
