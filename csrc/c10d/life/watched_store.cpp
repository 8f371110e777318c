#include "c10d/life/watched_store.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "core/error.h"

namespace fastcomm {

WatchedStore::WatchedStore(std::string prefix, c10::intrusive_ptr<::c10d::Store> store,
                           Deadline deadline, std::function<void()> look_around)
    : PrefixStore(std::move(prefix), std::move(store)),
      deadline_(deadline),
      look_around_(std::move(look_around)) {}

std::vector<uint8_t> WatchedStore::get(const std::string& key) {
  wait({key});
  return PrefixStore::get(key);
}

std::vector<std::vector<uint8_t>> WatchedStore::multiGet(const Keys& keys) {
  wait(keys);
  return PrefixStore::multiGet(keys);
}

void WatchedStore::wait(const Keys& keys) {
  constexpr std::chrono::microseconds kLongestPause{10'000};
  for (std::chrono::microseconds pause{100}; !check(keys);
       pause = std::min(pause * 2, kLongestPause)) {
    look_around_();
    if (Clock::now() > deadline_) {
      throw Error(ErrorCode::kTimeout,
                  concat("a wait for '", keys[0], "' in the store timed out: a rank did not come"));
    }
    std::this_thread::sleep_for(pause);
  }
}

void WatchedStore::wait(const Keys& keys, const std::chrono::milliseconds& /*timeout*/) {
  wait(keys);
}

}  // namespace fastcomm
