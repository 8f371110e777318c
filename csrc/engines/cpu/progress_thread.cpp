#include "engines/cpu/progress_thread.h"

#include <algorithm>
#include <system_error>

#include "core/error.h"
#include "core/thread_name.h"
#include "transport/wait.h"

namespace fastcomm {
namespace {

constexpr Milliseconds kWatch{1};

}  // namespace

std::vector<std::shared_ptr<Driven>> ProgressThread::to_drive() {
  std::lock_guard<std::mutex> lock(mutex_);
  changed_.store(false, std::memory_order_relaxed);
  groups_.erase(std::remove_if(groups_.begin(), groups_.end(),
                               [](const auto& group) { return !group->pending(); }),
                groups_.end());
  // Before the looks at those watched: work that becomes pending after a look finds this progress
  // thread busy.
  busy_.store(!groups_.empty() || !watched_.empty(), std::memory_order_seq_cst);
  for (size_t i = 0; i < watched_.size();) {
    auto group = watched_[i].lock();
    if (group == nullptr || !group->keep_watching()) {
      watched_.erase(watched_.begin() + static_cast<long>(i));
      continue;
    }
    ++i;
    if (group->pending() && std::find(groups_.begin(), groups_.end(), group) == groups_.end()) {
      groups_.push_back(std::move(group));
    }
  }
  if (groups_.empty()) busy_.store(false, std::memory_order_seq_cst);
  return groups_;
}

void ProgressThread::stop() {
  std::thread thread;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    changed_.store(true, std::memory_order_seq_cst);
    thread = std::move(thread_);
  }
  ring(doorbell_);
  ring(idle_bell_);
  if (thread.joinable()) thread.join();
}

void ProgressThread::add(std::shared_ptr<Driven> group) {
  wake_with([&] {
    if (std::find(groups_.begin(), groups_.end(), group) == groups_.end()) {
      groups_.push_back(std::move(group));
    }
  });
}

void ProgressThread::watch(const std::shared_ptr<Driven>& group) {
  wake_with([&] { watched_.push_back(group); });
}

template <class Enlist>
void ProgressThread::wake_with(const Enlist& enlist) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    enlist();
    if (stop_) return;
    if (!thread_.joinable()) start();
    // Sequentially consistent, and before the look at the sleepers (doorbell.h).
    changed_.store(true, std::memory_order_seq_cst);
  }
  ring_if_asleep(doorbell_);
  ring_if_asleep(idle_bell_);
}

void ProgressThread::start() {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    groups_.clear();
    throw Error(ErrorCode::kSystem,
                concat("no thread can be started for asynchronous operations: ", error.what(),
                       ". Raise ulimit -u or the container's limit on processes, or ulimit -v"));
  }
}

void ProgressThread::run() {
  name_thread("fc-progress");
  // A spinning progress thread would take the core from the computation that it is to overlap with.
  const WaitPolicy policy{std::chrono::microseconds(0), std::chrono::microseconds(50)};
  for (;;) {
    const auto groups = to_drive();
    bool watches = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stop_) return;
      watches = !watched_.empty();
    }
    if (groups.empty()) {
      const Deadline until = watches ? Clock::now() + kWatch : Deadline::max();
      sleep_on(idle_bell_, until, [&] { return changed_.load(); });
      continue;
    }
    const auto moved = [&] {
      bool any = changed_.load(std::memory_order_seq_cst);
      for (const auto& group : groups)
        any |= group->poll(Clock::duration::zero()) || !group->pending();
      return any;
    };
    const auto check = [&] {
      for (const auto& group : groups) group->examine();
    };
    wait_until(policy, doorbell_, moved, check, [] { return false; });
  }
}

}  // namespace fastcomm
