// NCCL's communicators, as far as they refuse something: they are made at the first operation on a
// device, with all ranks, or with two for their messages; and no two ranks of one may use the same
// device.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "line.h"

namespace sim {

inline std::exception_ptr nccl_error(const char* what, const char* code, const char* meaning,
                                     const std::string& last) {
  return communication_error(c10::str("NCCL error in: SimBackend, ", what, ", NCCL version 0.0.0\n",
                                      code, ": ", meaning, "\nLast error:\n", last));
}

/// Thread-safe.
class Communicators {
 public:
  static constexpr int kAll = -1;

  Communicators(c10::intrusive_ptr<::c10d::Store> store, int rank, int size, std::string machine)
      : store_(std::move(store)), rank_(rank), size_(size), machine_(std::move(machine)) {}

  /// Makes the communicator of a device, with all ranks or with this peer, unless it exists. Raises
  /// what the line fails with meanwhile.
  void join(c10::Device device, int peer, Milliseconds timeout, Line& line) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto members = members_with(peer);
    const std::string kind = peer == kAll ? "all" : c10::str(members[0], ":", members[1]);
    if (joined_.count({kind, device.index()}) != 0) return;
    const std::string name = c10::str("communicator/", kind, "/", ++count_[kind], "/");
    const auto place = c10::str(machine_, "/", static_cast<int>(device.index()));
    store_->set(c10::str(name, rank_), place);
    std::vector<std::string> keys;
    for (const int rank : members) keys.push_back(c10::str(name, rank));
    await(keys, timeout, line);
    std::map<std::string, int> places;
    for (size_t i = 0; i < members.size(); ++i) {
      const auto [same, alone] = places.emplace(store_->get_to_str(keys[i]), members[i]);
      if (!alone) refuse(members[i], same->second, same->first);
    }
    joined_.insert({kind, device.index()});
  }

 private:
  std::vector<int> members_with(int peer) const {
    if (peer != kAll) return {std::min(peer, rank_), std::max(peer, rank_)};
    std::vector<int> all;
    for (int rank = 0; rank < size_; ++rank) all.push_back(rank);
    return all;
  }

  /// As Store::wait, except that a failure of the line ends it.
  void await(const std::vector<std::string>& keys, Milliseconds timeout, Line& line) {
    const auto deadline = Clock::now() + timeout;
    while (!store_->check(keys)) {
      line.require_healthy();
      TORCH_CHECK_WITH(DistStoreError, Clock::now() < deadline, "wait timeout after ",
                       timeout.count(), "ms, keys: ", c10::Join(", ", keys));
      std::this_thread::sleep_for(Milliseconds(1));
    }
  }

  [[noreturn]] static void refuse(int rank, int other, const std::string& place) {
    std::rethrow_exception(
        nccl_error("invalid usage (run with NCCL_DEBUG=WARN for details)", "ncclInvalidUsage",
                   "This usually reflects invalid usage of NCCL library.",
                   c10::str("Duplicate GPU detected : rank ", rank, " and rank ", other,
                            " both on CUDA device ", place.substr(place.rfind('/') + 1))));
  }

  const c10::intrusive_ptr<::c10d::Store> store_;
  const int rank_;
  const int size_;
  const std::string machine_;
  std::mutex mutex_;
  std::set<std::pair<std::string, c10::DeviceIndex>> joined_;
  std::map<std::string, int> count_;
};

}  // namespace sim
