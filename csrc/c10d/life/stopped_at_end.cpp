#include "c10d/life/stopped_at_end.h"

#include <set>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "transport/fork.h"

namespace fastcomm {
namespace {

struct Listed {
  std::mutex mutex;  // taken before those of listed objects; held while a thread ends
  std::set<StoppedAtEnd*> all;
};

/// Never destroyed: a group may outlive the static objects.
Listed& listed() {
  static auto* shared = new Listed;
  return *shared;
}

}  // namespace

StoppedAtEnd::StoppedAtEnd() {
  const std::lock_guard<std::mutex> lock(listed().mutex);
  listed().all.insert(this);
}

void StoppedAtEnd::end() {
  {
    const std::lock_guard<std::mutex> lock(listed().mutex);
    listed().all.erase(this);
  }
  stop();
}

void StoppedAtEnd::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void StoppedAtEnd::start(const std::string& problem) {
  thread_ = start_thread(problem, [this] { run(); });
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
  for (StoppedAtEnd* each : listed().all) each->stop();
}

}  // namespace fastcomm
