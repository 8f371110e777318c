#include "engines/cpu/progress_thread.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "core/thread_name.h"
#include "transport/wait.h"

namespace fastcomm {
namespace {

constexpr Milliseconds kWatch{1};

}  // namespace

struct ProgressThread::Shared {
  explicit Shared(Doorbell& bell) : doorbell(bell) {}

  Doorbell& doorbell;
  Doorbell idle_bell{};  // while there are no groups
  std::mutex mutex;
  std::vector<std::shared_ptr<Driven>> groups;
  std::vector<std::weak_ptr<Driven>> watched;
  std::atomic<bool> busy{false};
  std::atomic<bool> changed{false};  // `groups` grew, or the progress thread is to stop
  bool stop = false;
  std::thread thread;

  std::vector<std::shared_ptr<Driven>> snapshot() {
    std::lock_guard<std::mutex> lock(mutex);
    changed.store(false, std::memory_order_relaxed);
    groups.erase(std::remove_if(groups.begin(), groups.end(),
                                [](const auto& group) { return !group->pending(); }),
                 groups.end());
    if (watched.empty()) {
      busy.store(!groups.empty(), std::memory_order_seq_cst);
      return groups;
    }
    // Before the looks at them: what becomes pending after a look finds this progress thread busy.
    busy.store(true, std::memory_order_seq_cst);
    for (size_t i = 0; i < watched.size();) {
      auto group = watched[i].lock();
      if (group == nullptr || !group->keep_watching()) {
        watched.erase(watched.begin() + static_cast<long>(i));
        continue;
      }
      ++i;
      if (group->pending() && std::find(groups.begin(), groups.end(), group) == groups.end()) {
        groups.push_back(std::move(group));
      }
    }
    if (groups.empty()) busy.store(false, std::memory_order_seq_cst);
    return groups;
  }

  bool watches() {
    std::lock_guard<std::mutex> lock(mutex);
    return !watched.empty();
  }
};

ProgressThread::ProgressThread(Doorbell& doorbell) : shared_(std::make_shared<Shared>(doorbell)) {}

ProgressThread::~ProgressThread() { stop(); }

void ProgressThread::stop() {
  std::thread thread;
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->stop = true;
    shared_->changed.store(true, std::memory_order_seq_cst);
    thread = std::move(shared_->thread);
  }
  ring(shared_->doorbell);
  ring(shared_->idle_bell);
  if (thread.joinable()) thread.join();
}

void ProgressThread::add(std::shared_ptr<Driven> group) {
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    auto& groups = shared_->groups;
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) {
      groups.push_back(std::move(group));
    }
    if (shared_->stop) return;
    start();
    // Sequentially consistent, and before the look at the sleepers (doorbell.h).
    shared_->changed.store(true, std::memory_order_seq_cst);
  }
  ring_if_asleep(shared_->doorbell);
  ring_if_asleep(shared_->idle_bell);
}

void ProgressThread::watch(const std::shared_ptr<Driven>& group) {
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    if (shared_->stop) return;
    start();
    shared_->watched.push_back(group);
    shared_->changed.store(true, std::memory_order_seq_cst);
  }
  ring_if_asleep(shared_->doorbell);
  ring_if_asleep(shared_->idle_bell);
}

bool ProgressThread::busy() const { return shared_->busy.load(std::memory_order_seq_cst); }

void ProgressThread::start() {
  if (shared_->thread.joinable()) return;
  try {
    shared_->thread = std::thread([shared = shared_.get()] { run(*shared); });
  } catch (const std::system_error& error) {
    shared_->groups.clear();
    throw Error(ErrorCode::kSystem,
                concat("no thread can be started for asynchronous operations: ", error.what(),
                       ". Raise ulimit -u or the container's limit on processes, or ulimit -v"));
  }
}

void ProgressThread::run(Shared& shared) {
  name_thread("fc-progress");
  // A spinning progress thread would take the core from the computation that it is to overlap with.
  const WaitPolicy policy{std::chrono::microseconds(0), std::chrono::microseconds(50)};
  for (;;) {
    auto groups = shared.snapshot();
    {
      std::lock_guard<std::mutex> lock(shared.mutex);
      if (shared.stop) return;
    }
    if (groups.empty()) {
      const Deadline until = shared.watches() ? Clock::now() + kWatch : Deadline::max();
      sleep_on(shared.idle_bell, until, [&] { return shared.changed.load(); });
      continue;
    }
    const auto moved = [&] {
      bool any = shared.changed.load(std::memory_order_seq_cst);
      for (const auto& group : groups)
        any |= group->poll(Clock::duration::zero()) || !group->pending();
      return any;
    };
    const auto check = [&] {
      for (const auto& group : groups) group->examine();
    };
    wait_until(policy, shared.doorbell, moved, check, [] { return false; });
  }
}

}  // namespace fastcomm
