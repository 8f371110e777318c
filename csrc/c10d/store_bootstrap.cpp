#include "c10d/store_bootstrap.h"

#include <algorithm>

#include "core/error.h"

namespace fastcomm {

void StoreBootstrap::set(const std::string& key, const std::string& value) {
  store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
}

bool StoreBootstrap::has(const std::string& key) { return store_->check({key}); }

std::string StoreBootstrap::get(const std::string& key, Deadline deadline) {
  const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
  try {
    store_->wait({key}, std::max(left, Milliseconds(1)));
  } catch (const std::exception& error) {
    // Stores say "time out" in words of their own, and a lost store in others.
    if (Clock::now() < deadline) {
      throw Error(ErrorCode::kSystem, concat("the store failed: ", error.what()));
    }
    throw Error(ErrorCode::kTimeout, concat("creating a group timed out waiting for '", key,
                                            "' in the store: a rank did not arrive, or ended"));
  }
  const std::vector<uint8_t> value = store_->get(key);
  return std::string(value.begin(), value.end());
}

}  // namespace fastcomm
