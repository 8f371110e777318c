#include "c10d/life/stopped_at_end.h"

#include <mutex>
#include <set>

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

void StoppedAtEnd::enlist() {
  const std::lock_guard<std::mutex> lock(listed().mutex);
  listed().all.insert(this);
}

void StoppedAtEnd::delist() {
  const std::lock_guard<std::mutex> lock(listed().mutex);
  listed().all.erase(this);
}

void stop_watches() {
  if (forked_from_endpoint()) return;
  const std::lock_guard<std::mutex> lock(listed().mutex);
  for (StoppedAtEnd* each : listed().all) each->stop();
}

}  // namespace fastcomm
