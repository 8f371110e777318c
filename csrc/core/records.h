// Records: what this process has called, in memory that others may read whatever state it is in.
//
// One file in memory (memfd) for each process, sealed, of one size, without a name in any file
// system. Who may look into the process opens it through /proc/PID/fd, or through a peer's, which
// hold it open, and reads; nobody writes to it but this process. fastcomm/_records/layout.py is the
// reader, and has the same layout.
//
//   header         what the process is; the clock; how many calls there have been
//   names          of the numbers below: lines of kind, number, name, with tabs between
//   groups         a page for each, with the numbers of its ranks in the job
//   calls          kCalls places of 128 bytes, taken in turn; one whose call is open is passed over
//
// A call costs the claim of a place (two atomic operations on lines that only threads of this
// process touch), stores to its two cache lines, and three readings of a counter: 30 ns or so where
// the processor has one of constant rate (core/ticks.h). benchmarks/record_cost.py measures it.
//
// Order. A place's stamp is odd while the place is written and even when it is whole; no stamp
// comes twice. The writer makes it odd, then a release fence, then writes, then makes it even with
// release. A reader takes the stamp, then the words, then the stamp again, each by a system call of
// its own. Words of a later call are seen only after its odd stamp (the fence), so the second stamp
// differs; words of this call are seen whole, since the even stamp came after them (release). Words
// that are set later (sequence, path, start, end) are single ones, 0 or none until then.
// A place is given on by the acquire load of `ended`, which its owner stores last, with release:
// nothing that the owner stored comes after the next one's stores.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/ticks.h"

namespace fastcomm {

namespace records {

constexpr uint64_t kMagic = 0x64726f6365726366;  // "fcrecord"
constexpr uint32_t kVersion = 1;
constexpr size_t kPage = 4096;
constexpr int kGroups = 256;
constexpr uint64_t kCalls = 8192;
constexpr size_t kTextBytes = 64;
constexpr size_t kMembers = (kPage - 1024) / sizeof(uint32_t);
constexpr uint64_t kNoSequence = ~uint64_t{0};
constexpr int kOutcomeBits = 4;
constexpr uint16_t kAsync = 1, kMessage = 2;  // flags of a call
constexpr uint16_t kNoGroup = 0xFFFF;

using Word = std::atomic<uint64_t>;

struct alignas(kPage) Header {
  uint64_t magic;
  uint32_t version;
  int32_t pid;          // as the process sees itself
  uint64_t start_time;  // field 22 of /proc/self/stat: a number is reused, both are not
  int64_t to_date;      // ns from the monotonic clock to the date
  // The counter: its first reading and the latest, with the time of each.
  alignas(64) Word first_ticks;
  Word first_ns;
  Word clock_before, latest_ticks, latest_ns, clock_after;  // stamps around the latest
  alignas(64) Word next;                                    // number of the next call
  // Calls without a record, and places that were passed over: `next` has counted both.
  alignas(64) Word dropped;
  Word passed;
};

struct alignas(kPage) GroupPage {
  Word stamp;
  uint64_t token[2];
  int32_t rank, size;
  Word opened, closed;      // in ticks; closed is 0 while the group is in use
  uint32_t members, times;  // how many are listed; of how many groups this page has been
  alignas(64) char name[kTextBytes];
  char description[kTextBytes];
  alignas(1024) uint32_t ranks[kMembers];
};

struct alignas(128) CallPlace {
  Word stamp;
  Word issued, started, ended;  // in ticks from first_ticks; `ended` has the outcome in low bits
  Word sequence, count, bytes;
  Word about;   // operation, dtype, reduction, engine (8 bits each), flags, group (16 bits each)
  Word path;    // the algorithm, and the lane above 8 bits
  Word rank;    // root or peer, and the tag above 32 bits
  Word thread;  // as the system numbers it
  Word times;   // GroupPage::times
  Word unused[4];
};

struct File {
  Header header;
  alignas(kPage) char names[kPage];
  GroupPage groups[kGroups];
  CallPlace calls[kCalls];
};
static_assert(sizeof(Header) == kPage && sizeof(GroupPage) == kPage && sizeof(CallPlace) == 128);
static_assert(sizeof(File) == (2 + kGroups) * kPage + kCalls * 128);

/// How a call ended: 1 for well, else one more than that of an ErrorCode.
constexpr uint8_t kWell = 1, kUnknown = 15;
constexpr uint8_t outcome_of(ErrorCode code) { return static_cast<uint8_t>(code) + 2; }

}  // namespace records

/// A copy of the file `fd`, of any process; nullptr if it is -1, cannot be read, or is not of this
/// version. Entries that were written meanwhile have odd stamps there.
std::unique_ptr<records::File> copy_of_records(int fd);

/// A call's record; by default none. Copies are of the same one. Nothing raises. All may be called
/// by any thread, one after the other; after end() they do nothing.
class CallRecord {
 public:
  CallRecord() = default;

  bool exists() const noexcept { return place_ != nullptr; }
  /// The number by which ranks know the call, and the way that it takes.
  void number(uint64_t sequence, uint8_t path) const noexcept {
    if (!is_mine()) return;
    place_->sequence.store(sequence, std::memory_order_relaxed);
    const uint64_t lane = place_->path.load(std::memory_order_relaxed) & ~uint64_t{0xFF};
    place_->path.store(lane | path, std::memory_order_relaxed);
  }
  /// All ranks are there that it needs: from here on data move.
  void start() const noexcept {
    if (is_mine()) place_->started.store(ticks() - first_, std::memory_order_relaxed);
  }
  void end(uint8_t outcome) const noexcept {
    if (!is_mine() || place_->ended.load(std::memory_order_relaxed) != 0) return;
    // Release: the place may be given on from here.
    place_->ended.store((ticks() - first_) << records::kOutcomeBits | outcome,
                        std::memory_order_release);
  }

 private:
  friend class Records;
  CallRecord(records::CallPlace* place, uint64_t stamp, uint64_t first)
      : place_(place), stamp_(stamp), first_(first) {}
  bool is_mine() const noexcept {
    return place_ != nullptr && place_->stamp.load(std::memory_order_relaxed) == stamp_;
  }

  records::CallPlace* place_ = nullptr;
  uint64_t stamp_ = 0;
  uint64_t first_ = 0;  // of the counter
};

/// This process's file. Thread-safe.
class Records {
 public:
  /// A group, while its calls are recorded.
  struct Group {
    uint16_t place = records::kNoGroup;
    uint32_t times = 0;
  };
  struct AboutGroup {
    uint64_t token[2];  // the same on all of its ranks, and of no other group
    int rank, size;
    std::string name, description;
    std::vector<uint64_t> members;
  };
  struct AboutCall {
    uint8_t operation, dtype, reduction, engine;
    uint16_t flags;
    uint8_t lane;
    int rank = -1, tag = 0;
    uint64_t sequence = records::kNoSequence, count = 0, bytes = 0;
    Group group;
  };

  /// Made by the first call, with its `names`, and never destroyed; nullptr if FASTCOMM_RECORDS is
  /// off, or there can be no such file: then why_not() has the reason.
  static Records* open(const std::string& names);
  /// That, if there is one.
  static Records* instance() noexcept { return instance_.load(std::memory_order_acquire); }
  static const std::string& why_not();

  /// In memory of at least sizeof(records::File) bytes, zero from the start, which is that of the
  /// file `fd`, if there is one.
  Records(void* memory, int fd, const std::string& names);
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;

  /// Open as long as the process lives.
  int fd() const { return fd_; }
  const records::File& file() const { return *file_; }

  /// No page is left: the calls are recorded without one.
  Group open_group(const AboutGroup& about);
  void close_group(const Group& group);

  /// A call that is issued now. None if all places are of open calls.
  CallRecord begin(const AboutCall& about) noexcept;

  uint64_t now() const noexcept { return ticks() - first_; }

 private:
  /// Takes a reading of the clock, unless another thread does.
  void set_clock(uint64_t now) noexcept;

  static std::atomic<Records*> instance_;

  records::File* const file_;
  int fd_ = -1;
  uint64_t first_ = 0;                  // reading of the counter
  uint64_t second_ = 0;                 // in ticks
  std::atomic<uint64_t> clock_due_{0};  // ticks at which the clock is read again
};

}  // namespace fastcomm
