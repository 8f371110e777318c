// A store whose waits look around: for code of torch's that waits in a store for other ranks, and
// knows nothing of their deaths.
#pragma once

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "core/clock.h"

namespace fastcomm {

/// Waits check again and again, and call `look_around` in between, which may raise; after
/// `deadline` they raise Error(kTimeout). No other thread is kept out of the store meanwhile.
class WatchedStore final : public ::c10d::PrefixStore {
 public:
  using Keys = std::vector<std::string>;

  WatchedStore(std::string prefix, c10::intrusive_ptr<::c10d::Store> store, Deadline deadline,
               std::function<void()> look_around);

  std::vector<uint8_t> get(const std::string& key) override;
  std::vector<std::vector<uint8_t>> multiGet(const Keys& keys) override;
  void wait(const Keys& keys) override;
  /// The deadline counts, not the timeout.
  void wait(const Keys& keys, const std::chrono::milliseconds& timeout) override;

 private:
  const Deadline deadline_;
  const std::function<void()> look_around_;
};

}  // namespace fastcomm
