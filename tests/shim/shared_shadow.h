// The shadow of memory that processes share: as shim/shadow.h, in a table of fixed size without
// pointers, so that it can lie in shared memory itself.
//
// Ranges of bytes, in order, with the last write, and of every worker the last read since. Cost of
// an access: linear in the number of ranges, where it makes or removes one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "shim/wide_clock.h"

namespace fastcomm::shim {

struct SharedUse {
  Worker worker;    // 0: nobody
  uint64_t number;  // of the worker's work
  uint32_t name;    // of the work, in the ledger

  bool same(const SharedUse& other) const {
    return worker == other.worker && number == other.number;
  }
};

/// Under the lock of its ledger. All zeros is an empty one.
struct SharedShadow {
  static constexpr uint32_t kMostRanges = 2048;
  static constexpr uint32_t kMostReads = 64;
  struct Range {
    uint64_t begin, end;
    SharedUse write;
    uint32_t count;
    SharedUse reads[kMostReads];  // one a worker, since the write
  };

  uint32_t count;
  Range ranges[kMostRanges];

  /// Notes that `use`, which is ordered after `clock`, reads or writes bytes [begin, end). Calls
  /// report(earlier, wrote, begin, bytes) for uses that it is not ordered after; of equal uses for
  /// the first alone, since all threads of a block report what the block does. False: no room.
  template <class Report>
  bool touch(uint64_t begin, uint64_t end, bool write, const SharedUse& use, const WideClock& clock,
             const Report& report) {
    if (begin == end || noted(begin, end, write, use)) return true;
    if (!cut_at(begin) || !cut_at(end)) return false;
    const uint32_t first = lower_bound(begin);
    uint32_t last = first;
    for (; last < count && ranges[last].begin < end; ++last) {
      check(ranges[last], write, use, clock, report);
    }
    if (write) {
      if (first == last && !insert(first)) return false;
      if (last > first + 1) remove(first + 1, last);
      ranges[first].begin = begin;
      ranges[first].end = end;
      ranges[first].write = use;
      ranges[first].count = 0;
      return true;
    }
    uint64_t at = begin;
    for (uint32_t i = first; at < end; ++i) {
      if (i == count || ranges[i].begin > at) {  // not used before
        const uint64_t next = i == count ? end : std::min(end, ranges[i].begin);
        if (!insert(i)) return false;
        ranges[i].begin = at;
        ranges[i].end = next;
        ranges[i].write = {};
        ranges[i].count = 0;
      }
      if (!note_read(ranges[i], use, clock)) return false;
      at = ranges[i].end;
    }
    return true;
  }

  /// Calls report, as touch does, for uses of `process` that `clock` has not seen.
  template <class Report>
  void unseen(uint32_t process, const WideClock& clock, const Report& report) const {
    for (uint32_t i = 0; i < count; ++i) {
      const auto look = [&](const SharedUse& earlier, bool wrote) {
        if (earlier.worker >> 32 != process || clock.seen(earlier.worker, earlier.number)) return;
        report(earlier, wrote, ranges[i].begin, ranges[i].end - ranges[i].begin);
      };
      look(ranges[i].write, true);
      for (uint32_t r = 0; r < ranges[i].count; ++r) look(ranges[i].reads[r], false);
    }
  }

 private:
  uint32_t lower_bound(uint64_t begin) const {
    return static_cast<uint32_t>(
        std::lower_bound(ranges, ranges + count, begin,
                         [](const Range& range, uint64_t at) { return range.begin < at; }) -
        ranges);
  }
  bool insert(uint32_t at) {
    if (count == kMostRanges) return false;
    std::memmove(ranges + at + 1, ranges + at, (count - at) * sizeof(Range));
    ++count;
    return true;
  }
  void remove(uint32_t first, uint32_t last) {
    std::memmove(ranges + first, ranges + last, (count - last) * sizeof(Range));
    count -= last - first;
  }
  bool cut_at(uint64_t at) {
    const uint32_t i = lower_bound(at);
    if (i == 0 || ranges[i - 1].end <= at) return true;
    if (!insert(i)) return false;
    ranges[i] = ranges[i - 1];
    ranges[i - 1].end = at;
    ranges[i].begin = at;
    return true;
  }
  /// Whether this very use has been noted for all of the bytes.
  bool noted(uint64_t begin, uint64_t end, bool write, const SharedUse& use) const {
    uint32_t i = lower_bound(begin);
    if (i != 0 && ranges[i - 1].end > begin) --i;
    for (uint64_t at = begin; at < end; at = ranges[i++].end) {
      if (i == count || ranges[i].begin > at) return false;
      const SharedUse* const reads = ranges[i].reads;
      const bool there = write ? ranges[i].write.same(use)
                               : std::any_of(reads, reads + ranges[i].count,
                                             [&](const SharedUse& read) { return read.same(use); });
      if (!there) return false;
    }
    return true;
  }

  template <class Report>
  static void check(const Range& range, bool write, const SharedUse& use, const WideClock& clock,
                    const Report& report) {
    const auto look = [&](const SharedUse& earlier, bool wrote) {
      if (earlier.worker == 0 || earlier.worker == use.worker) return;
      if (clock.seen(earlier.worker, earlier.number)) return;
      report(earlier, wrote, range.begin, range.end - range.begin);
    };
    look(range.write, true);
    for (uint32_t r = 0; write && r < range.count; ++r) look(range.reads[r], false);
  }

  /// Reads that this one is ordered after need not be remembered.
  static bool note_read(Range& range, const SharedUse& use, const WideClock& clock) {
    SharedUse* const kept =
        std::remove_if(range.reads, range.reads + range.count, [&](const SharedUse& read) {
          return read.worker == use.worker || clock.seen(read.worker, read.number);
        });
    range.count = static_cast<uint32_t>(kept - range.reads);
    if (range.count == kMostReads) return false;
    range.reads[range.count++] = use;
    return true;
  }
};

}  // namespace fastcomm::shim
