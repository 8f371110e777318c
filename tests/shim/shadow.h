// Who used which bytes last: the shadow of all memory, in which two uses without an order are
// found.
//
// Kept by ranges of bytes, not by allocations: ranks write disjoint parts of one tensor. A range
// has the last write, and of every actor the last read since. A read must be ordered after the
// write; a write after the write and all reads. Cost: logarithmic in the number of ranges; a write
// makes one range of what it covers.
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shim/clock.h"

namespace fastcomm::shim {

/// Bytes that a piece of work reads or writes.
struct Access {
  uintptr_t begin;
  uint64_t bytes;
  bool write;
  bool spoils = false;  // checked in this process alone
};

/// A piece of work, for as long as anything may have to be ordered after it.
struct Step {
  Actor actor = kHost;
  uint64_t number = 0;                      // of the actor's; 0: none
  std::shared_ptr<const std::string> what;  // in words

  bool ordered_before(const Clock& clock) const { return clock.seen(actor) >= number; }
};

/// Not thread-safe: shim/order.h is.
class Shadow {
 public:
  /// Called with the earlier use, whether that was a write, and the bytes that both use.
  using Report =
      std::function<void(const Step& earlier, bool wrote, uintptr_t begin, uint64_t bytes)>;

  /// Notes an access of `step`, whose actor is ordered after `clock`.
  void touch(const Access& access, const Step& step, const Clock& clock, const Report& report) {
    if (access.bytes == 0) return;
    const uintptr_t end = access.begin + access.bytes;
    cut_at(access.begin);
    cut_at(end);
    auto range = ranges_.lower_bound(access.begin);
    uintptr_t at = access.begin;
    while (at < end) {
      if (range == ranges_.end() || range->first > at) {  // not used before
        const uintptr_t next = range == ranges_.end() ? end : std::min(end, range->first);
        range = ranges_.emplace_hint(range, at, Uses{next, {}, {}});
      }
      check(range->second, range->first, access.write, clock, report);
      if (!access.write) note_read(range->second, step, clock);
      at = range->second.end;
      ++range;
    }
    if (access.write) {
      ranges_.erase(ranges_.lower_bound(access.begin), ranges_.lower_bound(end));
      ranges_.emplace(access.begin, Uses{end, step, {}});
    }
  }

  /// These bytes are no one's any more. Reports uses that `clock` is not ordered after.
  void forget(uintptr_t begin, uint64_t bytes, const Clock& clock, const Report& report) {
    if (bytes == 0) return;
    cut_at(begin);
    cut_at(begin + bytes);
    const auto last = ranges_.lower_bound(begin + bytes);
    const auto first = ranges_.lower_bound(begin);
    for (auto range = first; range != last; ++range) {
      check(range->second, range->first, /*write=*/true, clock, report);
    }
    ranges_.erase(first, last);
  }

  /// An allocator has these bytes; they must not be used until it gives them out again.
  void retire(uintptr_t begin, uint64_t bytes) { retired_[begin] = begin + bytes; }
  void revive(uintptr_t begin) { retired_.erase(begin); }
  bool is_retired(const Access& access) const {
    auto range = retired_.lower_bound(access.begin + access.bytes);
    return access.bytes != 0 && range != retired_.begin() &&
           std::prev(range)->second > access.begin;
  }

  /// Whether everything that used these bytes is ordered before `clock`.
  bool settled(uintptr_t begin, uint64_t bytes, const Clock& clock) {
    bool all = true;
    auto range = ranges_.upper_bound(begin);
    if (range != ranges_.begin()) --range;
    for (; range != ranges_.end() && range->first < begin + bytes; ++range) {
      if (range->second.end <= begin) continue;
      check(range->second, range->first, /*write=*/true, clock,
            [&](const Step&, bool, uintptr_t, uint64_t) { all = false; });
    }
    return all;
  }

 private:
  struct Uses {
    uintptr_t end;
    Step write;
    std::vector<Step> reads;  // one an actor, since the write
  };

  void cut_at(uintptr_t at) {
    auto range = ranges_.lower_bound(at);
    if (range == ranges_.begin()) return;
    --range;
    if (range->second.end <= at) return;
    Uses rest = range->second;
    range->second.end = at;
    ranges_.emplace_hint(std::next(range), at, std::move(rest));
  }

  static void check(const Uses& uses, uintptr_t begin, bool write, const Clock& clock,
                    const Report& report) {
    if (!uses.write.ordered_before(clock)) report(uses.write, true, begin, uses.end - begin);
    if (!write) return;
    for (const Step& read : uses.reads) {
      if (!read.ordered_before(clock)) report(read, false, begin, uses.end - begin);
    }
  }

  /// Reads that this one is ordered after need not be remembered.
  static void note_read(Uses& uses, const Step& step, const Clock& clock) {
    size_t kept = 0;
    for (Step& read : uses.reads) {
      if (!read.ordered_before(clock)) uses.reads[kept++] = std::move(read);
    }
    uses.reads.resize(kept);
    uses.reads.push_back(step);
  }

  std::map<uintptr_t, Uses> ranges_;
  std::map<uintptr_t, uintptr_t> retired_;  // whole blocks: begin, end
};

}  // namespace fastcomm::shim
