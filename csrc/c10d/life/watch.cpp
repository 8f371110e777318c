#include "c10d/life/watch.h"

#include <set>
#include <system_error>
#include <utility>

#include "core/control.h"
#include "core/error.h"
#include "transport/fork.h"

namespace fastcomm {
namespace {

struct Listed {
  std::mutex mutex;  // taken before those of listed objects; held while a thread ends
  std::set<Watch*> all;
};

/// Never destroyed: a group may outlive the static objects.
Listed& listed() {
  static auto* shared = new Listed;
  return *shared;
}

}  // namespace

Watch::Watch(ThreadName name, std::function<bool()> look) : name_(name), look_(std::move(look)) {
  const std::lock_guard<std::mutex> lock(listed().mutex);
  listed().all.insert(this);
}

Watch::~Watch() {
  {
    const std::lock_guard<std::mutex> lock(listed().mutex);
    listed().all.erase(this);
  }
  stop();
}

void Watch::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

bool Watch::has_stopped() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stop_;
}

void Watch::rouse(const std::string& front) {
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    if (!stop_ && !thread_.joinable()) {
      thread_ = start_thread(front + "no thread can be started: ", [this] { run(); });
    }
  } catch (const Error&) {
    awake_ = false;
    throw;
  }
  changed_.notify_one();
}

void Watch::run() {
  name_thread(name_);
  std::unique_lock<std::mutex> lock(mutex_);
  for (bool busy = false; !stop_;) {
    if (busy) {
      changed_.wait_for(lock, kLook, [this] { return stop_; });
    } else {
      changed_.wait(lock, [this] { return stop_ || awake_.load(std::memory_order_acquire); });
    }
    if (stop_) return;
    lock.unlock();
    // Stored before the look: what begins meanwhile wakes this thread, or is seen here.
    const bool early = !FC_LEFT_OUT(Control::kClearLate);
    if (early) awake_.store(false, std::memory_order_release);
    busy = look_();
    if (!early) awake_.store(false, std::memory_order_release);
    lock.lock();
  }
}

std::thread start_thread(const std::string& problem, std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw Error(
        ErrorCode::kSystem,
        concat(problem, error.what(), ". Raise ulimit -u or the container's limit on processes"));
  }
}

void stop_watches() {
  if (forked_from_endpoint()) return;
  const std::lock_guard<std::mutex> lock(listed().mutex);
  for (Watch* each : listed().all) each->stop();
}

}  // namespace fastcomm
