// Vector clocks: who has seen how much of whose work.
//
// An actor is a stream, or the host, which is one for all of its threads: what one of them has
// waited for, all know. An actor counts its work; a clock says up to which number of every actor
// its owner is ordered after.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastcomm::shim {

using Actor = uint32_t;
constexpr Actor kHost = 0;

class Clock {
 public:
  uint64_t seen(Actor actor) const { return actor < seen_.size() ? seen_[actor] : 0; }

  void join(const Clock& other) {
    if (seen_.size() < other.seen_.size()) seen_.resize(other.seen_.size());
    for (size_t i = 0; i < other.seen_.size(); ++i) seen_[i] = std::max(seen_[i], other.seen_[i]);
  }

  /// Counts one more piece of work of the clock's owner; returns its number, 1 for the first.
  uint64_t tick(Actor owner) {
    if (seen_.size() <= owner) seen_.resize(owner + 1);
    return ++seen_[owner];
  }

 private:
  std::vector<uint64_t> seen_;
};

}  // namespace fastcomm::shim
